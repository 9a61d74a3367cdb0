#!/usr/bin/env python3
"""Makes the PDF files of this directory, each with what it says in the order in which a person reads it (NAME.json).

    pip install typst && python3 make.py          (also needs `chromium` and its fonts)

Blocks are ["h", text], ["p", text], ["i", text] for an item of a list, and ["t", rows] for a table. What is not in the
blocks (headers, footers, numbers of pages) must not be in the text more than once.
"""
import html
import json
import os
import subprocess
import tempfile

import typst

HERE = os.path.dirname(os.path.abspath(__file__))

TIDES = "The harbour office measures the level of the water every six minutes. A float in a pipe moves a small wheel, and a counter reads the wheel. The numbers go to a board at the quay, where captains compare them with the table for the day. When the wind blows from the north for more than two days, the water stands higher than the table says, sometimes by half a metre."
FERRY = "A ferry that waits for the tide keeps its engine warm. The mate walks along the ramp and counts the cars that still have to come aboard. Lorries stand in the middle, because the deck is strongest there, and bicycles are tied to the rail. Nobody may stay in a car while the ship is moving, except for people who cannot climb the stairs."
LAMP = "The lamp of the lighthouse was changed in the spring. The old one had a glass as high as a man and turned in a bath of mercury. The new one is no larger than a loaf of bread, and it needs as much power as a kettle. Fishermen say that they miss the slow beam which swept over the roofs of the village."
RULES = "Visitors may bring dogs if they keep them on a lead. Fires are allowed on the stones below the high-water mark, and nowhere else. Whoever finds a seal on the beach stays thirty metres away and calls the number on the board. Tents must be gone by nine in the morning, since the warden begins his round at that time."
STORM = "During the storm of February the pier lost eleven of its planks. Two of them were found a week later on the other side of the bay, with the bolts still in them. The council decided to replace the planks with larch, which lasts longer in salt water than pine does, and to raise the pier by the height of one step."
MARKET = "On Saturdays the market fills the square from the church to the well. Cheese is sold in the shade and flowers in the sun. A bell at noon tells the traders to lower their prices, and a second one, an hour later, tells them to pack. The sweepers come at two, and by three the square belongs to children again."
BOATS = "Wooden boats are lifted out of the water in October. They dry for three weeks before anybody scrapes the paint, because wet wood tears. Each seam is looked at with a lamp and a needle. If the needle goes in further than the width of a thumb, the plank is replaced; otherwise it gets oil, then a primer, then two coats."
RECORDS = "The parish keeps its records in oak chests. Births are written in black ink, deaths in brown, and marriages in both. A clerk who made a mistake had to draw a line through it and sign the margin, so that one can still read what was wrong. The oldest book begins in the year of the great fire."
ALL = [TIDES, FERRY, LAMP, RULES, STORM, MARKET, BOATS, RECORDS]

PRICES = [["Boat", "Length", "Berth", "Price"], ["Anna", "7.5 m", "A12", "410"], ["Brise", "11 m", "B03", "655"], ["Cormorant", "9.2 m", "A04", "520"], ["Dora", "6 m", "C21", "333"]]
HOURS = [["Day", "Opens", "Closes"], ["Monday", "8:00", "17:30"], ["Tuesday", "9:15", "18:00"], ["Friday", "7:45", "16:00"], ["Sunday", "closed", "closed"]]
LONG = [["Fault", "Cause", "What to do"], ["No light", "The fuse has blown, or the cable is wet", "Dry the box, and put in a fuse of ten amperes"], ["Weak beam", "Salt on the glass", "Wash it with fresh water and a soft cloth"], ["Slow turn", "Old grease in the bearing", "Take the lamp off, clean the bearing, and grease it anew"]]


def chromium(name, body, style=""):
    page = f"<html><head><meta charset=utf-8><style>body{{font:11pt/1.35 'DejaVu Serif';text-align:justify;hyphens:auto}} h1{{font-size:20pt}} h2{{font-size:15pt}} table{{border-collapse:collapse;text-align:left}} td,th{{padding:3pt 12pt 3pt 2pt;font-weight:normal}} {style}</style></head><body lang=en>{body}</body></html>"
    with tempfile.TemporaryDirectory() as place:
        source = os.path.join(place, "page.html")
        with open(source, "w") as file:
            file.write(page)
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={HERE}/{name}.pdf", source], check=True, capture_output=True)


def paper(name, source):
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "page.typ")
        with open(path, "w") as file:
            file.write('#set text(font: "DejaVu Serif", size: 10pt, lang: "en")\n#set par(justify: true)\n' + source)
        typst.compile(path, output=f"{HERE}/{name}.pdf")


def say(name, blocks):
    with open(f"{HERE}/{name}.json", "w") as file:
        json.dump(blocks, file, ensure_ascii=False, indent=1)
        file.write("\n")


def as_html(blocks):
    parts = []
    for kind, content in blocks:
        if kind == "t":
            rows = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in content]
            parts.append("<table>" + "".join(rows) + "</table>")
        elif kind == "i":
            parts.append(f"<ul><li>{html.escape(content)}</li></ul>")
        else:
            parts.append(f"<{'h2' if kind == 'h' else 'p'}>{html.escape(content)}</{'h2' if kind == 'h' else 'p'}>")
    return "".join(parts)


def as_typst(blocks, stroke="0.5pt"):
    parts = []
    for kind, content in blocks:
        if kind == "t":
            cells = "".join(f"[{cell}], " for row in content for cell in row)
            parts.append(f"#table(columns: {len(content[0])}, stroke: {stroke}, {cells})")
        else:
            parts.append({"h": "= ", "p": "", "i": "- "}[kind] + content)
    return "\n\n".join(parts)


def paragraphs(texts, *headings):
    blocks = []
    for at, text in enumerate(texts):
        if at < len(headings):
            blocks.append(["h", headings[at]])
        blocks.append(["p", text])
    return blocks


def make():
    plain = paragraphs(ALL[:5], "The level of the water", "Waiting for the tide", "A smaller lamp")
    chromium("one-column", as_html(plain))
    say("one-column", plain)
    paper("one-column-typst", as_typst(plain))
    say("one-column-typst", plain)

    for columns in (2, 3):
        blocks = paragraphs(ALL, "The level of the water", "Waiting for the tide")
        title = ["h", "Notes from the harbour of a small town, for those who stay"]
        chromium(f"columns-{columns}", f"<h1>{title[1]}</h1><div style='columns:{columns};column-gap:16pt;column-fill:auto;height:7in'>" + as_html(blocks) + "</div>")
        say(f"columns-{columns}", [title, *blocks])
        paper(f"columns-{columns}-typst", f"#set page(columns: {columns})\n#place(top + center, scope: \"parent\", float: true, text(18pt)[*{title[1]}*])\n" + as_typst(blocks))
        say(f"columns-{columns}-typst", [title, *blocks])

    for name, stroke, border in (("ruled", "0.5pt", "td{border:0.5pt solid black}"), ("open", "none", "")):
        blocks = [["p", TIDES], ["t", PRICES], ["p", FERRY], ["t", HOURS], ["p", LAMP]]
        chromium(f"tables-{name}", as_html(blocks), border)
        say(f"tables-{name}", blocks)
        paper(f"tables-{name}-typst", as_typst(blocks, stroke))
        say(f"tables-{name}-typst", blocks)

    blocks = [["h", "Faults of the lamp"], ["p", LAMP], ["t", LONG], ["p", STORM]]
    chromium("table-long-cells", as_html(blocks), "td{border:0.5pt solid black} table{width:100%}")
    say("table-long-cells", blocks)

    # Headers, footers, and paragraphs that go on over the page.
    texts = ALL * 3
    blocks = [["p", text] for text in texts]
    paper("pages", "#set page(height: 14cm, header: [Harbour almanac #h(1fr) _draft_], footer: context [Issue 7 #h(1fr) #counter(page).display()])\n" + as_typst(blocks))
    say("pages", blocks)
    paper("pages-two-columns", "#set page(height: 16cm, columns: 2, footer: context align(center)[Page #counter(page).display() of #counter(page).final().first()])\n" + as_typst(blocks))
    say("pages-two-columns", blocks)

    # A footnote is read after the text of its page.
    note = "The pipe is cleaned twice a year by divers."
    blocks = [["p", TIDES + "1"], ["p", FERRY], ["p", LAMP], ["p", "1 " + note]]
    paper("footnote", TIDES + f"#footnote[{note}]" + "\n\n" + FERRY + "\n\n" + LAMP)
    say("footnote", blocks)

    # A page that lies on its side.
    blocks = [["h", "Berths of the inner harbour"], ["p", MARKET], ["t", PRICES]]
    paper("landscape", "#set page(flipped: true)\n" + as_typst(blocks))
    say("landscape", blocks)
    paper("turned", "#set page(margin: 1cm)\n#rotate(-90deg, reflow: true, box(width: 24cm)[" + as_typst([["p", MARKET], ["p", BOATS]]) + "])")
    say("turned", [["p", MARKET], ["p", BOATS]])

    items = ["Ring the bell twice before the ship leaves.", "Count the life jackets, and write the number into the book that hangs beside the door of the bridge.", "Close the ramp."]
    blocks = [["p", RULES], *[["i", item] for item in items], ["p", RECORDS]]
    paper("list", as_typst(blocks))
    say("list", blocks)

    hebrew = ["הנמל נפתח בשעה שש בבוקר ונסגר עם רדת החשכה. מי שמגיע מאוחר יותר צריך להמתין עד למחרת היום.", "הספינה הגדולה יוצאת פעמיים ביום. הקברניט בודק את מצב הים לפני כל הפלגה ורושם אותו ביומן."]
    chromium("right-to-left", "".join(f"<p dir=rtl style=\"font-family:'DejaVu Sans';text-align:right\">{text}</p>" for text in hebrew))
    say("right-to-left", [["p", text] for text in hebrew])

    arabic = ["يفتح الميناء في السادسة صباحا ويغلق عند الغروب. من يصل بعد ذلك ينتظر حتى اليوم التالي.", "تخرج السفينة الكبيرة مرتين في اليوم. يفحص القبطان حالة البحر قبل كل رحلة."]
    chromium("arabic", "".join(f"<p dir=rtl style=\"font-family:'DejaVu Sans';text-align:right\">{text}</p>" for text in arabic))
    say("arabic", [["p", text] for text in arabic])

    # Tables with level lines only, as in books, and a note that runs along the margin.
    blocks = [["p", MARKET], ["t", HOURS], ["p", BOATS]]
    table = "#table(columns: 3, stroke: none, table.hline(), " + "".join(f"[{cell}], " for cell in HOURS[0]) + "table.hline(stroke: 0.4pt), " + "".join(f"[{cell}], " for row in HOURS[1:] for cell in row) + "table.hline())"
    paper("table-level-lines", MARKET + "\n\n" + table + "\n\n" + BOATS)
    say("table-level-lines", blocks)
    note = "Printed by the harbour office, third edition"
    paper("margin-note", f"#place(left + horizon, dx: -1.6cm, rotate(-90deg, reflow: true)[{note}])\n" + as_typst([["p", RULES], ["p", STORM]]))
    say("margin-note", [["p", RULES], ["p", STORM], ["p", note]])

    # A box beside the text, and a letter with its address.
    chromium("aside", f"<div style='float:right;width:32%;border:1pt solid black;padding:6pt;margin-left:14pt'>{STORM}</div><p>{TIDES}</p><p>{FERRY}</p>")
    say("aside", [["p", TIDES], ["p", FERRY], ["p", STORM]])

    # A table over two columns of text, which a paragraph goes on after, and notes that do the same over a page.
    harbours = [["Harbour", "Depth", "Ships", "Cars", "Rank"], ["Oban", "12.5", "310", "9000", "1"], ["Mallaig", "8.0", "120", "4000", "2"], ["Ullapool", "9.1", "77", "2500", "3"]]
    table = "#table(columns: (1fr,) * 5, stroke: none, table.hline(), " + "".join(f"[{cell}], " for cell in harbours[0]) + "table.hline(stroke: 0.4pt), " + "".join(f"[{cell}], " for row in harbours[1:] for cell in row) + "table.hline())"
    paper("table-over-columns", f"#set page(columns: 2, height: 15cm)\n#place(bottom, scope: \"parent\", float: true)[{table}]\n" + as_typst([["p", text] for text in ALL]))
    say("table-over-columns", [["p", text] for text in ALL[:4]] + [["t", harbours]] + [["p", text] for text in ALL[4:]])
    names = "red blue green black white grey brown pink".split()
    paper("footnotes", "#set page(height: 13cm)\n" + "\n\n".join(f"{text}#footnote[See the book in the {name} chest.] So it ends." for text, name in zip(ALL, names)))
    say("footnotes", [["p", f"{text}{number} So it ends."] for number, text in enumerate(ALL, 1)])

    # Cells of several lines without lines between them, and merged cells.
    horn = [*LONG, ["The horn does not sound at all", "Water in the horn", "Dry it"]]
    paper("table-open-long-cells", TIDES + "\n\n#table(stroke: none, columns: (3cm, 5cm, 5cm), " + "".join(f"[{cell}], " for row in horn for cell in row) + ")\n\n" + FERRY)
    say("table-open-long-cells", [["p", TIDES], ["t", horn], ["p", FERRY]])
    cell = "<td>{}</td>".format
    chromium("table-merged", f"<p>{TIDES}</p><table><tr><td rowspan=2>Port</td><td colspan=2>In the summer</td></tr><tr>{cell('Cars')}{cell('People')}</tr><tr>{cell('Oban')}{cell('10')}{cell('20')}</tr><tr>{cell('Mallaig')}<td colspan=2>closed for now</td></tr></table><p>{FERRY}</p>", "td{border:0.5pt solid black}")
    say("table-merged", [["p", TIDES], ["t", [["Port", "In the summer", ""], ["Port", "Cars", "People"], ["Oban", "10", "20"], ["Mallaig", "closed for now", ""]]], ["p", FERRY]])

    # Bullets that are drawn, a table of contents, and an address at the right.
    chromium("list-drawn", f"<p>{RULES}</p><ul>" + "".join(f"<li>{item}</li>" for item in items) + f"</ul><p>{RECORDS}</p>")
    say("list-drawn", [["p", RULES], *[["i", item] for item in items], ["p", RECORDS]])
    address = ["Ada Lovelace", "7 Mill Lane", "Mallaig PH41 4PD"]
    paper("letter", "#align(right)[" + " \\ ".join(address) + "]\n#v(1cm)\n" + as_typst([["p", STORM], ["p", MARKET]]) + "\n#outline()\n= Boats\n= Tides of the year\n")
    say("letter", [["p", "\n".join(address)], ["p", STORM], ["p", MARKET], ["h", "Contents"], ["p", "Boats … 1\nTides of the year … 1"], ["h", "Boats"]])

    # Numbers, brackets and Latin words within Hebrew, and a table that begins at the right.
    mixed = ["הנמל נפתח בשעה 06:30 בבוקר ונסגר בשעה 22:15. המחיר הוא 45.50 שקל לאדם, ו-120 לרכב.", "חברת Harbour Supplies מוכרת לכל מי שרוצה חבלים (12 מטר) וציוד."]
    goods = [["שם", "מחיר", "כמות"], ["חבל", "42.00", "20"], ["עוגן", "131.00", "3"]]
    chromium("right-to-left-mixed", f"<div dir=rtl style=\"font-family:'DejaVu Sans'\"><p>{mixed[0]}</p><p>{mixed[1]}</p>" + as_html([["t", goods]]) + "</div>", "td{border:0.5pt solid black}")
    say("right-to-left-mixed", [["p", text] for text in mixed] + [["t", goods]])


if __name__ == "__main__":
    make()
