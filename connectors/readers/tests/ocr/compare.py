"""Compares what turnflow and RapidOCR read of scans whose text is known.

    python3 -m venv v
    v/bin/pip install rapidocr==3.10.0 onnxruntime==1.31.1 pypdfium2==5.15.2
    v/bin/python connectors/readers/tests/ocr/compare.py target/debug/turnflow

The scans are pictures of pages of the test files of `tests/pdf`, drawn by pdfium. Their text is what turnflow reads of the
PDF files themselves. Both use the same models and as many threads as there are cores. The error is the edit distance of
the letters, as a share of the text's; blanks count, but how many does not. RapidOCR does not know the order of columns, so
the file with columns is read by turnflow alone. RapidOCR gives the lines from the top of
the picture, whichever way the page lies, so the order of a turned page is wrong there. turnflow's time includes its start.
"""

import json
import pathlib
import random
import re
import resource
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


def timed(read, paths, who):
    """What is read, and the seconds and the processor's seconds that it takes."""
    read(paths[:1])
    begun, spent = time.monotonic(), resource.getrusage(who)
    texts = read(paths)
    now = resource.getrusage(who)
    return texts, time.monotonic() - begun, now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime


def main():
    program = sys.argv[1]
    from rapidocr import RapidOCR

    rapid = RapidOCR(params={"Global.log_level": "error"})

    def other(paths):
        return [" ".join(rapid(path).txts or []) for path in paths]

    with tempfile.TemporaryDirectory() as folder:
        level, columns = [], []
        for name in LEVEL + COLUMNS:
            path = FILES / f"{name}.pdf"
            (text,) = turnflow(program, [path])
            for number, (kind, image, form, options) in enumerate(scans(pypdfium2.PdfDocument(path)[0])):
                scan = pathlib.Path(folder) / f"{name}-{number}.{form}"
                image.save(scan, **options)
                (level if name in LEVEL else columns).append((kind, str(scan), letters(text)))
        paths = [path for _, path, _ in level]
        ours = timed(lambda paths: turnflow(program, paths), paths, resource.RUSAGE_CHILDREN)
        theirs = timed(other, paths, resource.RUSAGE_SELF)
        further = turnflow(program, [path for _, path, _ in columns])
        print(f"{'':26} {'turnflow':>18} {'RapidOCR':>18} {'turnflow, columns':>18}")
        for kind in dict.fromkeys(kind for kind, _, _ in level):
            shares = [share(kind, ours[0], level), share(kind, theirs[0], level), share(kind, further, columns)]
            print(f"{kind:26}", *(f"{100 * one:16.2f} %" for one in shares), flush=True)
        for who, (_, seconds, spent) in [("turnflow", ours), ("RapidOCR", theirs)]:
            pages = len(level)
            print(f"{who}: {60 * pages / seconds:.1f} pages a minute, {spent / pages:.1f} s of the processor for a page")


def share(kind, texts, scans):
    some = [(letters(text), known) for text, (of, _, known) in zip(texts, scans, strict=True) if of == kind]
    return sum(distance(text, known) for text, known in some) / sum(len(known) for _, known in some)


main()
