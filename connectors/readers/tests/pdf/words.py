#!/usr/bin/env python3
"""Which share of the words that pdfium finds in PDF files `turnflow read` has too, and the other way round.

    pip install pypdfium2 && python3 words.py DIRECTORY [--turnflow PROGRAM]

DIRECTORY has .pdf files, such as test/pdfs of the repository mozilla/pdf.js. A file with fewer than five different words
is not counted. pdfium's words are those of its first 200 pages; files that it needs more than 20 s for are left out.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import unicodedata
from collections import Counter

REFERENCE = """
import sys, pypdfium2
pages = pypdfium2.PdfDocument(sys.argv[1])
for number in range(min(len(pages), 200)):
    print(pages[number].get_textpage().get_text_bounded())
"""


def words(text):
    return Counter(re.findall(r"\w+", unicodedata.normalize("NFKC", text).lower()))


def output(command):
    try:
        done = subprocess.run(command, capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.decode("utf-8", "replace")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directory", type=pathlib.Path)
    options.add_argument("--turnflow", default="turnflow")
    options = options.parse_args()
    rows = []
    for path in sorted(options.directory.glob("*.pdf")):
        wanted = words(output([sys.executable, "-c", REFERENCE, str(path)]))
        if len(wanted) < 5:
            continue
        read = output([options.turnflow, "read", "--format", "json", str(path)])
        found = words(json.loads(read)["text"] if read else "")
        common = (wanted & found).total()
        rows.append((common / wanted.total(), common / max(found.total(), 1), found.total(), path.name))
    for recall, precision, _, name in sorted(rows)[:20]:
        print(f"{recall:.2f} {precision:.2f} {name}")
    read = [row for row in rows if row[2]]
    print(f"{len(rows)} files with text, {len(rows) - len(read)} of which nothing was read")
    print(f"95 % of the words or more: {sum(row[0] >= 0.95 for row in rows) / len(rows):.3f}")
    print(f"precision of 0.9 or more:  {sum(row[1] >= 0.9 for row in read) / len(read):.3f}")


if __name__ == "__main__":
    main()
