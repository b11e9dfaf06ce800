"""Containers without a container engine: processes with their own root folder on a network's host.

Such a container has a private mount namespace. Its root has the machine's system folders, Python
and the project, all read-only, and the volumes and empty folders of the service. It runs as the
service's user without any capability, and ends with its processes. This checks that a service's
command, files and rights fit together. The system files are the machine's, or those of a built
image.
"""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.namespaces import Host

TMPFS = "nosuid,nodev,noexec"  #: Docker's default options
SYSTEM = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr")


@dataclass(frozen=True)
class Files:
    """The file system of a container."""

    app: Path  #: folder of the project, mounted as ``/app``
    venv: Path = Path(sys.prefix)  #: virtual environment, also mounted as ``/opt/venv``
    volumes: Mapping[str, tuple[Path, bool]] = field(default_factory=dict)
    """By path inside: the folder outside, and whether it is read-only."""
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    """Mount options of each empty folder in memory, by path."""
    read_only: bool = False
    image: Path | None = None  #: the root file system of a built image, instead of app and venv

    def script(self, root: str) -> str:
        """Return shell lines that build the file system at ``root``, an existing empty folder."""
        lines = [f"mount -t tmpfs -o mode=0755 root {root}"]
        lines += self._system(root) if self.image is None else self._image(root)
        for name in ("proc", "dev", "sys"):
            lines += [f"mkdir -p {root}/{name}", f"mount --rbind /{name} {root}/{name}"]
        for path, options in self.tmpfs.items():
            lines.append(f"mkdir -p {root}{path}")
            options = ",".join(filter(None, (TMPFS, options)))
            lines.append(f"mount -t tmpfs -o {options} none {root}{path}")
        lines += self._project(root) if self.image is None else []  # may lie below /tmp
        for path, (folder, read_only) in self.volumes.items():
            lines += bind(str(folder), f"{root}{path}", read_only)
        if self.read_only:
            lines.append(f"mount -o remount,ro,bind {root}")
        return "\n".join(lines)

    @staticmethod
    def _system(root: str) -> list[str]:
        """Return shell lines that mount the machine's system folders."""
        lines = []
        for name in SYSTEM:
            if Path(name).is_symlink():
                lines.append(f"ln -s {Path(name).readlink()} {root}{name}")
            elif Path(name).is_dir():
                lines += bind(name, f"{root}{name}", True, recursive=True)
        return lines

    def _project(self, root: str) -> list[str]:
        """Return shell lines that mount the machine's Python, its environment, and the project."""
        lines = []
        for python in sorted({sys.base_prefix, str(self.venv)}):
            if not python.startswith("/usr"):
                lines += bind(python, f"{root}{python}", True)
        lines += bind(str(self.venv), f"{root}/opt/venv", True)
        return [*lines, *bind(str(self.app), f"{root}/app", True)]

    def _image(self, root: str) -> list[str]:
        """Return shell lines that mount the image under a writable layer, and the host's names."""
        layers = f"lowerdir={self.image},upperdir={root}/upper,workdir={root}/work"
        return [
            f"mkdir {root}/upper {root}/work",
            f"mount -t overlay -o {shlex.quote(layers)} image {root}",
            f"touch {root}/etc/hosts",
            f"mount --bind /etc/hosts {root}/etc/hosts",
        ]


def bind(source: str, target: str, read_only: bool, *, recursive: bool = False) -> list[str]:
    """Return shell lines that mount the folder ``source`` at ``target``."""
    source, target = shlex.quote(source), shlex.quote(target)
    how = "rbind" if recursive else "bind"
    lines = [f"mkdir -p {target}", f"mount --{how} {source} {target}"]
    return [*lines, f"mount -o remount,ro,bind {target}"] if read_only else lines


def start(
    host: Host,
    command: Sequence[str],
    files: Files,
    env: Mapping[str, str],
    user: str,
    cwd: str,
    root: Path,
    log: Path,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a container on ``host``; return the command's own process.

    ``user``: ``uid:gid``; ``cwd``: working directory inside; ``root``: an empty folder, on which
    the container mounts its root privately; ``log``: file to which its output is appended.
    """
    enter = ["chroot", str(root), "sh", "-c", 'cd "$0" && exec "$@"', cwd]
    line = shlex.join([*enter, *unprivileged(user), *environment(env), *command])
    script = f"set -eu\n{files.script(str(root))}\nexec {line}"
    inside = ["unshare", "--mount", "--propagation=private", "sh", "-c", script]
    return host.start(inside, log=log, cwd=Path("/"))


def execute(
    process: subprocess.Popen[bytes],
    command: Sequence[str],
    env: Mapping[str, str],
    user: str,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run another ``command`` in the container of ``process`` until it ends."""
    enter = ["nsenter", f"--target={process.pid}", "--net", "--mount", "--uts", "--root", "--wd"]
    return subprocess.run(
        [*enter, *unprivileged(user), *environment(env), *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def unprivileged(user: str) -> list[str]:
    """Return the prefix of a command that runs it as ``uid:gid`` without any capability."""
    uid, _, gid = user.partition(":")
    who = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    return ["setpriv", *who, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]


def environment(env: Mapping[str, str]) -> list[str]:
    """Return the prefix of a command that gives it exactly this environment."""
    return ["env", "-i", *(f"{name}={value}" for name, value in env.items())]
