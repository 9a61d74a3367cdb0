#!/usr/bin/env python3
"""Writes a column of words as text, one per line, in the order of the rows.

    words_from_parquet.py WORDS.parquet COLUMN OUT.txt

Needs pyarrow.
"""

import sys

import pyarrow.parquet


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: words_from_parquet.py WORDS.parquet COLUMN OUT.txt")
    source, column, out = sys.argv[1:]
    try:
        words = pyarrow.parquet.read_table(source, columns=[column])[column].to_pylist()
        if any("\n" in word for word in words):
            raise ValueError("a word has a line break")
        with open(out, "w", encoding="utf-8", newline="\n") as lines:
            lines.writelines(f"{word}\n" for word in words)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"words_from_parquet.py: {source}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
