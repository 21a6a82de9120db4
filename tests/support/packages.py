"""Real wheels and a package index in a folder, for a real uv."""

import hashlib
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

Files = Mapping[str, str]


def wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    *,
    files: Files | None = None,
    modules: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
    pages: Mapping[str, str] | None = None,
    metadata: str = "",
    tag: str = "py3-none-any",
) -> Path:
    """A wheel in `folder`; by default with one package that says its version.

    Args:
        requires: Its requirements.
        files: What is in it instead of that package.
        modules: Module id → entry point.
        commands: Name and help line of a command → entry point.
        pages: Name of a page of `amplifier view` → entry point.
        metadata: Further lines of its metadata.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {f"{package}/__init__.py": f"VERSION = {version!r}\n"} if files is None else files
    groups = {
        "amplifier.modules": modules or {},
        "amplifier.commands": commands or {},
        "amplifier.pages": pages or {},
    }
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
        if entries
    )
    listed = {
        **content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"{lines}{metadata}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": points,
    }
    record = "".join(f"{one},,\n" for one in (*listed, f"{info}/RECORD"))
    file = folder / f"{package}-{version}-{tag}.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in {**listed, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return file


def tar(file: Path, files: Files, *, top: str = "") -> Path:
    """A tar archive, compressed as its name says, with everything in the folder `top`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    source = file.parent / f".{file.name}.source"
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    mode = {"gz": "gz", "tgz": "gz", "bz2": "bz2", "xz": "xz"}.get(
        file.name.lower().split(".")[-1], ""
    )
    with tarfile.open(file, f"w:{mode}") as archive:  # type: ignore[call-overload]
        archive.add(source, arcname=top or ".")
    return file


def index(folder: Path, wheels: Path) -> str:
    """A simple index of a folder of wheels; its URL."""
    for file in sorted(wheels.glob("*.whl")):
        name = file.name.partition("-")[0].replace("_", "-").lower()
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        link = f'<a href="{file.as_uri()}#sha256={digest}">{file.name}</a><br/>\n'
        before = page.read_text(encoding="utf-8") if page.exists() else "<!DOCTYPE html>\n"
        page.write_text(before + link, encoding="utf-8")
    return folder.as_uri()


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
