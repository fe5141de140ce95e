"""PP-OCR's three models with their real weights, each with a picture of text as input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.compare.whole.zoo import Prepared, package_folder
from roller_tvm.errors import BadInput

TEXT = ("ROLLER", "rTile 64 x 64", "Hello, world!", "tuned in seconds", "OSDI 2022")


@dataclass(frozen=True)
class Part:
    """One of PP-OCR's models.

    Parameters
    ----------
    file : str
        Part of its file's name.
    height, width : int
        Height and width of its picture in pixels.
    lines : tuple of str
        Lines of text in the picture.
    mean, deviation : tuple of float
        PP-OCR's normalisation of the channels blue, green, red.
    """

    file: str
    height: int
    width: int
    lines: tuple[str, ...]
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)


PARTS = {
    "detection": Part("det", 320, 320, TEXT, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "direction": Part("cls", 48, 192, TEXT[2:3]),
    "recognition": Part("rec", 48, 320, TEXT[2:3]),
}


def ocr_model(name: str, folder: Path) -> Prepared:
    """Return one of ``PARTS`` with its picture, which is kept in the folder.

    Raises
    ------
    BadInput
        The package with the models is missing.
    """
    part = PARTS[name]
    models = package_folder("rapidocr_onnxruntime") / "models"
    found = sorted(models.glob(f"*{part.file}*.onnx"))
    if not found:
        raise BadInput(f"no {name} model", str(models), "pip install rapidocr-onnxruntime==1.4.4")
    folder.mkdir(parents=True, exist_ok=True)
    picture = draw_text(part)
    picture.save(folder / f"{name}.png")
    return Prepared(f"PP-OCR {name}", found[-1], {"x": normalised(picture, part)})


def draw_text(part: Part) -> Any:
    """Return a white picture with lines of text."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (part.width, part.height), "white")
    pen = ImageDraw.Draw(picture)
    several = len(part.lines) > 1
    step = part.height // (len(part.lines) + several)
    top, size = (step // 2, step // 2) if several else (step // 8, step * 5 // 8)  # a line cut out fills its picture
    for number, line in enumerate(part.lines):
        at = (part.width // 12, top + number * step)
        pen.text(at, line, fill="black", font=ImageFont.load_default(size))
    return picture


def normalised(picture: Any, part: Part = PARTS["detection"]) -> np.ndarray:
    """Return a picture as PP-OCR takes it: an array of 1 x 3 x height x width."""
    pixels = np.asarray(picture, np.float32)[:, :, ::-1] / 255.0
    pixels = (pixels - np.array(part.mean, np.float32)) / np.array(part.deviation, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def text_lines(probability: np.ndarray, threshold: float = 0.3) -> int:
    """Return the number of text lines in a map of probabilities: bands of rows above the threshold."""
    rows = (probability.reshape(probability.shape[-2:]) > threshold).any(axis=1)
    return int(np.count_nonzero(np.diff(rows.astype(np.int8), prepend=0) == 1))
