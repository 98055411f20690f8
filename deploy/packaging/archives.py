"""Archives that are equal bit for bit if their contents are: sorted, with one time, and owned by root."""

import dataclasses
import gzip
import io
import tarfile
import zipfile


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file, a folder (no `data`) or a link (`link`), at a path without a slash at its ends."""

    path: str
    data: bytes | None = None
    mode: int = 0o644
    link: str | None = None


def with_folders(entries):
    """The entries in the order of their paths, each folder before its files."""
    found = {entry.path: entry for entry in entries}
    for entry in entries:
        parts = entry.path.split("/")[:-1]
        for length in range(1, len(parts) + 1):
            path = "/".join(parts[:length])
            found.setdefault(path, Entry(path, mode=0o755))
    return [found[path] for path in sorted(found, key=lambda path: path.split("/"))]


def tar(entries, epoch, prefix=""):
    """A tar archive in the form of POSIX.1-1988, which every program reads."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in with_folders(entries):
            info = tarfile.TarInfo(prefix + entry.path)
            info.mtime = epoch
            info.mode = entry.mode
            if entry.link is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
            elif entry.data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.data)
            archive.addfile(info, io.BytesIO(entry.data or b""))
    return file.getvalue()


def compressed(data):
    """gzip without a name and a time."""
    return gzip.compress(data, compresslevel=9, mtime=0)


def ar(members, epoch):
    """The archive of Debian packages: named contents, in the order given."""
    parts = [b"!<arch>\n"]
    for name, data in members:
        parts.append(f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)


def zip_archive(entries, moment):
    """A zip archive of files in the order given, all with one time: a tuple from the year to the second."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for entry in entries:
            info = zipfile.ZipInfo(entry.path, moment)
            info.external_attr = (0o100000 | entry.mode) << 16
            info.create_system = 3  # Unix, so that the permissions count.
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, entry.data)
    return file.getvalue()
