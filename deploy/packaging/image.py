#!/usr/bin/env python3
"""Writes the image for all processors, without a container engine and without a registry.

An image is a few JSON documents and an archive, so this writes them itself: no program in between decides on times,
orders or names, and two runs give equal bits. The formats are those of version 1.1 of
https://github.com/opencontainers/image-spec.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import sys

sys.dont_write_bytecode = True

import archives
import program
import project
from archives import Entry
from project import DIST, STATIC, TARGETS

OCI = "application/vnd.oci.image"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path, default=STATIC, help="the folder that build.py fills")
    parser.add_argument("--to", type=pathlib.Path, default=DIST, help="where the image goes")
    options = parser.parse_args()
    programs = program.read_all(options.programs)
    options.to.mkdir(parents=True, exist_ok=True)
    name = f"tollgate-{project.version()}-image"
    images = {architecture: Image(architecture, data) for architecture, data in programs.items()}
    path = options.to / f"{name}.tar"
    path.write_bytes(as_tar(layout(images.values())))
    print(f"{path}: an image layout for {' and '.join(images)}")
    for architecture, image in images.items():
        path = options.to / f"{name}-{architecture}.tar"
        path.write_bytes(as_tar(loadable(image)))
        layer = len(image.blobs[image.manifest["layers"][0]["digest"]])
        print(f"{path}: layer {layer / 1e6:.2f} MB, program {len(programs[architecture]) / 1e6:.2f} MB")
    project.write_checksums(options.to)


class Image:
    """The documents and the only layer of the image for one processor."""

    def __init__(self, architecture, data):
        self.blobs = {}
        self.platform = {"architecture": architecture, "os": "linux"}
        layer = archives.tar(files(data), project.epoch())
        config = {
            "created": created(),
            **self.platform,
            "config": {
                # A number and not a name: `runAsNonRoot` can check a number only.
                "User": "65532:65532",
                # HTTP with /healthcheck, gRPC, debug.
                "ExposedPorts": {"8080/tcp": {}, "8081/tcp": {}, "6070/tcp": {}},
                "Entrypoint": ["/bin/tollgate"],
                "WorkingDir": "/",
                "Labels": labels(),
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            "history": [{"created": created(), "created_by": "deploy/packaging/image.py"}],
        }
        if architecture == "arm64":
            config["variant"] = self.platform["variant"] = "v8"
        self.config = self.add(f"{OCI}.config.v1+json", to_json(config))
        self.manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": self.config,
            "layers": [self.add(f"{OCI}.layer.v1.tar+gzip", archives.compressed(layer))],
            "annotations": labels(),
        }
        self.descriptor = self.add(self.manifest["mediaType"], to_json(self.manifest)) | {"platform": self.platform}

    def add(self, media_type, data):
        """Adds a blob and returns its descriptor."""
        self.blobs[digest(data)] = data
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def files(data):
    """The second name is the one that deployments of envoyproxy/ratelimit call, without arguments. There are no root
    certificates: the program holds them."""
    return [Entry("bin/tollgate", data, 0o755), Entry("bin/ratelimit", link="tollgate")]


def labels():
    package = project.package()
    found = {
        "org.opencontainers.image.title": project.TITLE,
        "org.opencontainers.image.description": package["description"],
        "org.opencontainers.image.version": package["version"],
        "org.opencontainers.image.licenses": package["license"],
        "org.opencontainers.image.created": created(),
        "org.opencontainers.image.revision": project.commit(),
    }
    return {name: value for name, value in sorted(found.items()) if value}


def created():
    moment = datetime.datetime.fromtimestamp(project.epoch(), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def layout(images):
    """The files of an image layout with one image for all processors, under its version."""
    index = to_json({
        "schemaVersion": 2,
        "mediaType": f"{OCI}.index.v1+json",
        "manifests": [image.descriptor for image in images],
        "annotations": labels(),
    })
    found = {}
    for image in images:
        found |= blobs(image.blobs)
    found |= blobs({digest(index): index})
    descriptor = {"mediaType": f"{OCI}.index.v1+json", "digest": digest(index), "size": len(index)}
    return found | entry_points(descriptor)


def loadable(image):
    """The files that `podman load` and `docker load` read: an image layout, and the list that older engines read."""
    found = blobs(image.blobs) | entry_points(image.descriptor)
    found["manifest.json"] = to_json([{
        "Config": blob_path(image.config["digest"]),
        "RepoTags": [f"tollgate:{project.version()}"],
        "Layers": [blob_path(layer["digest"]) for layer in image.manifest["layers"]],
    }])
    return found


def as_tar(found):
    return archives.tar([Entry(path, data) for path, data in found.items()], project.epoch())


def entry_points(descriptor):
    """The two files of an image layout that have names of their own."""
    # Some programs take the name of the image from the second annotation.
    names = {
        "org.opencontainers.image.ref.name": project.version(),
        "io.containerd.image.name": f"docker.io/library/tollgate:{project.version()}",
    }
    index = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.index.v1+json",
        "manifests": [descriptor | {"annotations": names}],
    }
    return {"oci-layout": to_json({"imageLayoutVersion": "1.0.0"}), "index.json": to_json(index)}


def blobs(contents):
    return {blob_path(name): data for name, data in contents.items()}


def blob_path(name):
    return "blobs/" + name.replace(":", "/")


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def to_json(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


if __name__ == "__main__":
    project.run(main)
