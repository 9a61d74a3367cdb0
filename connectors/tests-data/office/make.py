"""Makes the files of this folder: what real programs write. Needs python-docx, python-pptx, openpyxl and EbookLib."""

import datetime
import re
import zipfile
from email.message import EmailMessage
from pathlib import Path

import docx
import openpyxl
import pptx
from ebooklib import epub

HERE = Path(__file__).parent
DAY = datetime.datetime(2026, 11, 25, 21, 56, 49)


def make_docx():
    document = docx.Document()
    properties = document.core_properties
    properties.title, properties.author = "Ferries of the west", "Ada Lovelace"
    properties.keywords, properties.language = "ferry, boat", "en-GB"
    properties.created = properties.modified = DAY
    document.add_heading("Ferries", 0)
    document.add_paragraph("The ferry leaves at ten.")
    document.add_heading("Ports", 1)
    document.add_paragraph("Oban", style="List Bullet")
    document.add_paragraph("Mallaig", style="List Bullet")
    document.add_paragraph("Buy a ticket", style="List Number")
    document.add_paragraph("Go on board", style="List Number")
    document.add_heading("Boats", 2)
    table = document.add_table(rows=3, cols=3)
    for row, cells in enumerate([("Port", "Boat", "Cars"), ("Oban", "Isle", "90"), ("", "Lord", "70")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    document.save(HERE / "ferries.docx")


def make_pptx():
    deck = pptx.Presentation()
    deck.core_properties.author = "Ada Lovelace"
    first = deck.slides.add_slide(deck.slide_layouts[0])
    first.shapes.title.text = "Ferries"
    first.placeholders[1].text = "A short tour"
    second = deck.slides.add_slide(deck.slide_layouts[1])
    second.shapes.title.text = "Ports"
    frame = second.placeholders[1].text_frame
    frame.text = "Oban"
    inner = frame.add_paragraph()
    inner.text, inner.level = "West coast", 1
    second.notes_slide.notes_text_frame.text = "Mention the weather."
    third = deck.slides.add_slide(deck.slide_layouts[5])
    third.shapes.title.text = "Boats"
    table = third.shapes.add_table(2, 2, 0, 0, 3000000, 1000000).table
    for row, cells in enumerate([("Boat", "Cars"), ("Isle", "90")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    deck.save(HERE / "ferries.pptx")


def make_xlsx():
    book = openpyxl.Workbook()
    book.properties.title, book.properties.creator = "Timetable", "Ada Lovelace"
    sheet = book.active
    sheet.title = "Sailings"
    sheet.append(["Port", "Leaves", "Cars", "Full"])
    sheet.append(["Oban", DAY, 90, 0.25])
    sheet.append([None, DAY.date(), 70.5, 1])
    sheet.merge_cells("A2:A3")
    sheet["D2"].number_format = sheet["D3"].number_format = "0%"
    hidden = book.create_sheet("Hidden")
    hidden["A1"], hidden.sheet_state = "secret", "hidden"
    far = book.create_sheet("Far")
    far["XFD1048576"] = "the end"
    book.save(HERE / "sailings.xlsx")


def make_epub():
    book = epub.EpubBook()
    book.set_identifier("ferry")
    book.set_title("The Ferry")
    book.set_language("en")
    book.add_author("Ada Lovelace")
    pages = []
    for number, name in enumerate(["One", "Two"]):
        page = epub.EpubHtml(title=name, file_name=f"page {number}.xhtml")
        page.content = f"<h1>{name}</h1><p>Page {number} &amp; more.</p>"
        book.add_item(page)
        pages.append(page)
    book.toc, book.spine = pages, ["nav", *pages]
    book.add_item(epub.EpubNcx())
    book.add_item(epub.EpubNav())
    epub.write_epub(HERE / "ferry.epub", book)


def make_eml():
    message = EmailMessage()
    message["From"], message["To"] = "Ada Lovelace <ada@example.org>", "Böb <bob@example.org>"
    message["Subject"], message["Date"] = "Fähre at ten", DAY.replace(tzinfo=datetime.timezone.utc)
    message.set_content("The Fähre leaves at ten.\n")
    message.add_alternative("<p>The Fähre leaves at ten.</p>", subtype="html")
    message.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="Karte ä.pdf")
    (HERE / "faehre.eml").write_bytes(bytes(message))


def without_tables(content):
    """Removes the styles of tables, which are most of a document."""
    return re.sub(rb'<w:style w:type="table".*?</w:style>', b"", content, flags=re.DOTALL)


def slim(name):
    """Packs an archive again, without the parts that no reader looks at."""
    dropped = ("docProps/thumbnail", "theme/", "slideLayouts/", "slideMasters/", "notesMasters/", "printerSettings", "customXml", "WithEffects")
    with zipfile.ZipFile(HERE / name) as archive:
        parts = [(part, without_tables(archive.read(part))) for part in archive.namelist() if not any(word in part for word in dropped)]
    with zipfile.ZipFile(HERE / name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for part, content in parts:
            archive.writestr(zipfile.ZipInfo(part, DAY.timetuple()[:6]), content, zipfile.ZIP_DEFLATED)


for make in [make_docx, make_pptx, make_xlsx, make_epub, make_eml]:
    make()

for name in ["ferries.docx", "ferries.pptx"]:
    slim(name)
