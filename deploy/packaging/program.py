"""The compiled program of each processor."""

import platform
import struct

from project import STATIC, TARGETS, Problem

# e_machine of ELF.
MACHINES = {"amd64": 62, "arm64": 183}
PT_INTERP = 3


def read(architecture, folder=STATIC):
    """The static program for a processor.

    Raises a Problem if it is not there, is for another processor, or needs a library of the system: an image from
    scratch has none.
    """
    path = folder / architecture / "tollgate"
    if not path.is_file():
        raise Problem(f"{path} is not there: run deploy/packaging/build.py {architecture}")
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise Problem(f"{path} is no 64-bit ELF program")
    machine, = struct.unpack_from("<H", data, 18)
    if machine != MACHINES[architecture]:
        raise Problem(f"{path} is not for {architecture}: its ELF machine is {machine}")
    start, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    kinds = [struct.unpack_from("<I", data, start + number * size)[0] for number in range(count)]
    if PT_INTERP in kinds:
        raise Problem(f"{path} is not static: it names a loader")
    return data


def read_all(folder=STATIC):
    return {architecture: read(architecture, folder) for architecture in TARGETS}


def of_this_machine(folder=STATIC):
    """The path of the program that this machine can start."""
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    architecture = names.get(platform.machine())
    if architecture is None:
        raise Problem(f"no program is built for {platform.machine()}")
    return folder / architecture / "tollgate"
