"""What comments in the programs under test say of the line below them."""

from __future__ import annotations


def marked(text: str, mark: str) -> dict[int, str]:
    """By line, what stands behind `# mark ` in the line above."""
    return {
        number + 1: line.split(f"# {mark} ")[1]
        for number, line in enumerate(text.split("\n"), 1)
        if f"# {mark} " in line
    }
