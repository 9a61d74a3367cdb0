"""The widget of `turnflow serve` in a page of another site: page_widget.py URL TOKEN PORT OTHER_PORT [SHOTS].

Needs what page_browser.py needs. Pages are served at PORT, whose origin the server allows, and at OTHER_PORT, whose origin it
does not allow.
"""

import http.server
import sys
import threading

from selenium.webdriver.common.keys import Keys

from page_browser import HOSTILE, Page

url, token, port, other = sys.argv[1:5]
PAGE = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A shop</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {url}; connect-src {url}; style-src 'self' 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,"><style>button, p, * {{ font-size: 60px !important; color: red !important }} section {{ display: none !important }}</style></head>
<body><h1>A shop</h1><script src="{url}/widget.js" data-token="{token}" data-title="Ask the ferry" data-greeting="Hello, what would you like to know?" async></script></body></html>"""


class Shop(http.server.BaseHTTPRequestHandler):
    """The page of another site."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_):
        pass


for at in (port, other):
    threading.Thread(target=http.server.ThreadingHTTPServer(("127.0.0.1", int(at)), Shop).serve_forever, daemon=True).start()
page = Page(url, "", sys.argv[5] if len(sys.argv) > 5 else None)
driver = page.driver
INNER = "const root = document.querySelector('turnflow-widget')?.shadowRoot; if (!root) return null; "
inside = lambda script, *arguments: driver.execute_script(INNER + script, *arguments)
text = lambda css: inside("return [...root.querySelectorAll(arguments[0])].map(e => e.textContent).join('|')", css) or ""


def asks(question):
    before = inside("return root.querySelectorAll('.answer').length")
    field = inside("return root.getElementById('question')")
    # The driver does not type what is beyond a font's first characters.
    driver.execute_script("arguments[0].value = arguments[1]", field, question)
    field.send_keys(Keys.ENTER)
    page.wait("the question is answered", lambda: inside("return root.querySelectorAll('.answer').length > arguments[0] && root.querySelector('form button[type=submit]').hidden === false", before))


try:
    driver.get(f"http://127.0.0.1:{port}/")
    page.wait("the button is there", lambda: inside("return root.querySelector('.open')"))
    look = inside("const style = getComputedStyle(root.querySelector('.open')); return [style.fontSize, root.querySelector('.open').getBoundingClientRect().height]")
    page.need(look[0] == "15px" and look[1] >= 44, f"the page changes the look of the widget: {look}")
    page.shot("widget-closed.png")
    inside("root.querySelector('.open').click()")
    page.need(inside("return root.querySelector('.panel').getBoundingClientRect().width") > 200, "the panel is not shown")
    page.need("Hello, what" in text(".talk"), "no greeting")
    sizes = inside("return [...root.querySelectorAll('.panel, h2')].map(e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height])")
    page.need(sizes[0][0] <= 420 and sizes[1][1] < 40, f"the page changes the size of the widget: {sizes}")
    asks("When does the ferry leave?")
    page.need("leaves at nine" in text(".answer"), f"the answer is {text('.talk')!r}")
    links = inside("return [...root.querySelectorAll('.answer .cite')].map(e => [e.textContent, e.href])")
    page.need(links and links[0][0].startswith("[") and links[0][1].startswith(url), f"the citations are {links}")
    page.need("Island" in text(".sources"), f"the sources are {text('.sources')!r}")
    page.shot("widget-answer.png")
    asks("And what does a ticket cost?")
    page.need("four euros" in text(".answer"), f"the conversation does not go on: {text('.talk')!r}")
    asks(HOSTILE)
    page.need(driver.title == "A shop" and not inside("return root.querySelectorAll('img, script, iframe').length"), "a text was read as markup")
    page.wait("the question is shown as it is", lambda: "<img src=x" in text(".asked") and "\u202e" not in text(".asked"))
    page.shot("widget.png")
    page.size(390, 844)
    page.shot("widget-narrow.png")
    small = inside("return [...root.querySelectorAll('button, textarea')].map(e => [e.textContent, e.getBoundingClientRect()]).filter(([, r]) => r.height && (r.height < 44 || r.width < 44)).map(([t]) => t)")
    page.need(not small, f"too small for a finger: {small}")
    inside("return root.getElementById('question')").send_keys(Keys.ESCAPE)
    page.need(inside("return root.querySelector('.panel').hidden && root.activeElement === root.querySelector('.open')"), "Esc does not close it")
    nameless = inside("return [...root.querySelectorAll('button, textarea')].filter(e => !(e.getAttribute('aria-label') || e.textContent || e.labels?.length)).length")
    page.need(not nameless, f"{nameless} controls without a name")
    complaints = page.complaints()
    page.need(not complaints, f"the console complained: {complaints[:4]}")
    # A page that the server does not allow gets nothing.
    driver.get(f"http://127.0.0.1:{other}/")
    page.wait("the button is there", lambda: inside("return root.querySelector('.open')"))
    inside("root.querySelector('.open').click()")
    asks("When does the ferry leave?")
    page.need("cannot be reached from this page" in text(".problem") and "nine" not in text(".answer"), f"another site gets {text('.talk')!r}")
    print("ok: the widget works in a page of another site")
finally:
    page.close()
