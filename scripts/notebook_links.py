"""A hook of mkdocs that resolves links in notebooks as in Markdown; a wrong link fails the strict build."""

from __future__ import annotations

import logging
import re
from typing import Any

LINK = re.compile(r'href="([\w/-]+\.(?:md|ipynb))(#[^"]*)?"')
log = logging.getLogger("mkdocs.hooks.notebook_links")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    def led(link: re.Match[str]) -> str:
        target = files.get_file_from_path(link[1])
        if target is None:
            log.warning(f"{page.file.src_uri} links to {link[1]}, which is no page")
            return link[0]
        return f'href="{target.url_relative_to(page.file)}{link[2] or ""}"'

    return LINK.sub(led, html) if page.file.src_uri.endswith(".ipynb") else html
