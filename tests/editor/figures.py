"""`make images`: the screenshots of the last run of the scenarios, for the documentation.

With a palette in place of all colours: 0.4 of the bytes, and a look that is the same to the eye.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]


def main() -> None:
    for shot in sorted((ROOT / ".editor/screenshots").glob("vscode-*.png")):
        with Image.open(shot) as image:
            reduced = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            reduced.save(ROOT / "docs/images" / shot.name, optimize=True)


if __name__ == "__main__":
    main()
