"""Takes what pages link to outside docs/ into the site: README and its like as pages, examples and recipes as files.

Links are written as they are right in the repository (`../examples/x.py`), and are changed here to where the file is in
the site. Called by mkdocs (hooks in mkdocs.yml).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
#  Pages of the repository's root -> their names in the site, where README.md would be a second index.md.
PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
ROOT_PAGES = {name: path for path, name in PAGES.items()}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds what is linked to and lies elsewhere."""
    wanted = set(PAGES)
    for file in files.documentation_pages():
        text = Path(file.abs_src_path or "").read_text(encoding="utf-8")
        wanted |= {path for path in (in_repository(file, link[0]) for link in LINK.findall(text)) if path}
    for path in sorted(wanted):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            files.append(File.generated(config, PAGES.get(path, path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001 - as it is called
    """Changes links into and out of docs/ to links within the site."""

    def changed(match: re.Match[str]) -> str:
        path = in_repository(page.file, match[1])
        if path is None:
            return match[0]
        target = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(target) is None:
            # A folder (README names examples/) has no page; anything else is a broken link, which mkdocs tells.
            return "](index.md)" if (ROOT / path).is_dir() else match[0]
        return f"]({posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or '.')}{match[2] or ''})"

    return LINK.sub(changed, markdown)


def in_repository(file: File, link: str) -> str | None:
    """What a link of a page names, as a path from the repository's root; None outside of it."""
    source = ROOT_PAGES.get(file.src_uri, f"docs/{file.src_uri}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return None if path.startswith("..") else path
