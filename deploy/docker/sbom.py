"""Write the software bill of materials of an image as CycloneDX 1.6 JSON to standard output.

``python sbom.py IMAGE FOLDER...`` lists the Python packages in the folders, the Debian packages of
the base image and the interpreter. It runs while the image is built.
"""

import platform
import subprocess
import sys
from importlib.metadata import distributions

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

PACKAGE = "${Package} ${Version} ${Architecture}\n"


def component(kind: str, namespace: str | None, name: str, version: str, **more: str) -> Component:
    """Return a library with its package URL."""
    url = PackageURL(kind, namespace, name, version, qualifiers=more or None)
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url)
    )


def bill(image: str, folders: list[str]) -> Bom:
    """Return the bill of the image ``image`` with the Python packages in ``folders``."""
    bom = Bom()
    bom.metadata.component = Component(name=f"fedmosaic-{image}", type=ComponentType.CONTAINER)
    for package in distributions(path=folders):
        bom.components.add(component("pypi", None, package.name.lower(), package.version))
    query = ["dpkg-query", "--show", "--showformat", PACKAGE]
    for line in subprocess.run(
        query, check=True, capture_output=True, text=True
    ).stdout.splitlines():
        name, version, arch = line.split()
        bom.components.add(component("deb", "debian", name, version, arch=arch))
    bom.components.add(component("generic", None, "python", platform.python_version()))
    return bom


if __name__ == "__main__":
    print(JsonV1Dot6(bill(sys.argv[1], sys.argv[2:])).output_as_string(indent=1))
