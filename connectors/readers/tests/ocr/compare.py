"""Compares what turnflow and RapidOCR read of scans whose text is known.

    python3 -m venv v
    v/bin/pip install rapidocr==3.10.0 onnxruntime==1.31.1 pypdfium2==5.15.2
    v/bin/python connectors/readers/tests/ocr/compare.py target/debug/turnflow

The scans are pictures of pages of the test files of `tests/pdf`, drawn by pdfium. Their text is what turnflow reads of the
PDF files themselves. Both use the same models and as many threads as there are cores. The error is the edit distance of
the letters, as a share of the text's; blanks count, but how many does not. RapidOCR does not know the order of columns, so
the file with columns is read by turnflow alone. The time is that of the first files, after one page that does not count.
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import numpy
import pypdfium2
from PIL import Image

FILES = pathlib.Path(__file__).parent.parent / "pdf"
LEVEL = ["one-column", "one-column-typst"]
COLUMNS = ["columns-2"]


def noisy(image):
    """With grey paper, specks and uneven ink."""
    random.seed(7)
    numbers = numpy.random.default_rng(7)
    pixels = numpy.asarray(image).astype(float) * 0.85 + 20
    pixels += numbers.normal(0, 12, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype("uint8"))


def scans(page):
    """Pictures of a page, by what was done to them, with the options with which they are stored."""
    of = lambda dpi: page.render(scale=dpi / 72).to_pil().convert("RGB")
    turned = lambda image, by: image.rotate(by, expand=True, fillcolor="white", resample=Image.BICUBIC)
    yield "300 dpi", of(300), "png", {}
    yield "150 dpi", of(150), "png", {}
    yield "300 dpi, upside down", turned(of(300), 180), "png", {}
    yield "300 dpi, turned by 90°", turned(of(300), 90), "png", {}
    yield "300 dpi, askew by 2°", turned(of(300), 2), "png", {}
    yield "300 dpi, noise, JPEG 50", noisy(of(300)), "jpg", {"quality": 50}
    yield "150 dpi, noise, JPEG 50", noisy(of(150)), "jpg", {"quality": 50}


def letters(text):
    text = re.sub(r"^\s*(#+|[-•])\s+", "", text, flags=re.M)
    return " ".join(re.sub(r"[*_\\]", "", text).replace("’", "'").split())


def distance(one, other):
    """The edit distance (Levenshtein 1966)."""
    row = numpy.arange(len(other) + 1)
    places = numpy.arange(len(other) + 1)
    codes = numpy.array([ord(letter) for letter in other])
    for number, letter in enumerate(one, 1):
        best = numpy.minimum(row[1:] + 1, row[:-1] + (codes != ord(letter)))
        row = numpy.concatenate([[number], best])
        row = numpy.minimum.accumulate(row - places) + places
    return int(row[-1])


def turnflow(program, paths):
    out = subprocess.run([program, "read", "--json", *paths], capture_output=True, text=True).stdout
    return [json.loads(line).get("text", "") for line in out.splitlines()]


def timed(read, paths):
    read(paths[:1])
    begun = time.monotonic()
    texts = read(paths)
    return texts, time.monotonic() - begun


def main():
    program = sys.argv[1]
    from rapidocr import RapidOCR

    rapid = RapidOCR(params={"Global.log_level": "error"})

    def other(paths):
        return [" ".join(rapid(str(path)).txts or []) for path in paths]

    with tempfile.TemporaryDirectory() as folder:
        kinds = {}
        for name in LEVEL + COLUMNS:
            path = FILES / f"{name}.pdf"
            (text,) = turnflow(program, [path])
            document = pypdfium2.PdfDocument(path)
            if len(document) > 1:
                continue
            for number, (kind, image, form, options) in enumerate(scans(document[0])):
                scan = pathlib.Path(folder) / f"{name}-{number}.{form}"
                image.save(scan, **options)
                kinds.setdefault(kind, []).append((name, str(scan), letters(text)))
        print(f"{'':26} {'turnflow':>18} {'RapidOCR':>18} {'turnflow, columns':>18}")
        spent = {"turnflow": 0.0, "RapidOCR": 0.0}
        pages = 0
        for kind, all_scans in kinds.items():
            level = [scan for scan in all_scans if scan[0] in LEVEL]
            paths = [path for _, path, _ in level]
            shares = []
            for who, read in [("turnflow", lambda paths: turnflow(program, paths)), ("RapidOCR", other)]:
                texts, seconds = timed(read, paths)
                spent[who] += seconds
                shares.append(share(texts, level))
            pages += len(level)
            columns = [scan for scan in all_scans if scan[0] in COLUMNS]
            shares.append(share(turnflow(program, [path for _, path, _ in columns]), columns))
            print(f"{kind:26}", *(f"{100 * one:16.2f} %" for one in shares), flush=True)
        for who, seconds in spent.items():
            print(f"{who}: {60 * pages / seconds:.1f} pages a minute")


def share(texts, scans):
    wrong = sum(distance(letters(text), known) for text, (_, _, known) in zip(texts, scans, strict=True))
    return wrong / sum(len(known) for _, _, known in scans)


main()
