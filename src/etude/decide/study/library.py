"""The gallery: published systems as studies, one file each."""

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import read_mapping

GALLERY = Path(__file__).parent / "gallery"


def entries() -> list[dict[str, Any]]:
    """Name, system, group, mechanisms, status, grade with why it is thin, ring and title of every entry, by group and
    name."""
    found = []
    for path in GALLERY.glob("*.yaml"):
        given = read_mapping(path)
        grade, _, why = str(given.get("grade", "")).partition(": ")
        found.append(
            {
                "name": path.stem,
                "system": given.get("paper", ""),
                "group": given.get("group", ""),
                "mechanisms": given.get("mechanisms", []),
                "status": given.get("status", ""),
                "grade": grade,
                "why": why,
                "ring": given.get("ring", 1),
                "title": given.get("title", ""),
            }
        )
    return sorted(found, key=lambda entry: (int(entry["group"][1:] or 0), entry["name"]))


def find(path: str | PathLike[str]) -> Path:
    """A file, or the entry of the gallery with that name."""
    file = Path(path)
    if file.is_file():
        return file
    entry = GALLERY / f"{file.name}.yaml"
    if fspath(path) == file.name and entry.is_file():
        return entry
    if file.suffix in (".yaml", ".yml", ".json"):
        raise UsageError("no such file", where=fspath(path))
    names = sorted(p.stem for p in GALLERY.glob("*.yaml"))
    near = [n for n in names if n[:3] == file.name[:3]] or names[:6]
    hint = f"`etude study list` lists all; perhaps {', '.join(near)}; or a file"
    raise UsageError(f"there is no study `{fspath(path)}`", hint=hint)


def is_own(path: Path) -> bool:
    """Whether a file is an entry of the gallery itself, not a copy of one."""
    return path.resolve().parent == GALLERY.resolve()


def template() -> str:
    """The file that `etude study new` writes."""
    return (Path(__file__).parent / "new.yaml").read_text("utf-8")
