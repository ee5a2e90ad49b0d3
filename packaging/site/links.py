"""What the site changes in the documents, which are written to be read in the repository."""

import os
import re

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#]+)(#[^)]*)?\)")


def slug(text, separator):
    """Anchors as in the repository: lower case, blanks as hyphens, no other signs."""
    kept = re.sub(r"[^\w\- ]", "", text.lower())
    return kept.replace(" ", separator)


def on_page_markdown(markdown, page, config, **_):
    """Links to files beside the documents become their names: the site has only the documents."""
    folder = os.path.dirname(page.file.src_path)

    def text(match):
        target = os.path.normpath(os.path.join(folder, match[2]))
        is_outside = target.startswith("..") and "://" not in match[2]
        return match[1] if is_outside else match[0]

    return LINK.sub(text, markdown)
