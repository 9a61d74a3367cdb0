"""Drives the page of `turnflow serve` in a browser: page_browser.py URL [TOKEN[,OTHER]] [DIR] [AXE].

OTHER is the token of another caller, and AXE the path of axe-core's `axe.min.js`.

Needs selenium==4.51.0, chromium and chromedriver. Prints a line for each check, and exits with 1 at
the first that fails. With DIR, screenshots are written there. PAGE_PIPELINE names the pipeline to ask,
by default the first; PAGE_PATIENCE_S is how long a condition may take, by default 180 seconds.
"""

import os
import shutil
import sys
import tempfile
import time

from selenium import webdriver
from selenium.common.exceptions import NoAlertPresentException, StaleElementReferenceException, TimeoutException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = float(os.environ.get("PAGE_PATIENCE_S", "180"))
QUESTION = "How does reciprocal rank fusion score a passage?"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> \u202eabc\u202c \u0645\u0631\u062d\u0628\u0627"
NAMELESS = """
const name = e => (e.getAttribute('aria-label') || (e.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean)
    .map(id => document.getElementById(id)?.textContent || '').join(' ')
    || [...(e.labels || [])].map(l => l.textContent).join(' ') || e.textContent || e.title || '').trim();
return [...document.querySelectorAll('button, input, select, textarea, [role=button], [role=tab], summary, a[href]')]
    .filter(e => !name(e)).map(e => e.outerHTML.slice(0, 120));
"""
WIDE = "return [document.documentElement.scrollWidth, window.innerWidth]"


class Failed(Exception):
    """A check that failed."""


class Page:
    """The page in a browser."""

    def __init__(self, url, token, shots, axe=None, tests=None):
        self.url, self.shots, self.axe, self.tests = url, shots, axe, tests
        self.token, _, self.other = token.partition(",")
        self.profile = tempfile.mkdtemp(prefix="turnflow-page-")
        options = Options()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", f"--user-data-dir={self.profile}"):
            options.add_argument(argument)
        options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = shutil.which("chromedriver")
        self.driver = webdriver.Chrome(options=options, service=Service(driver) if driver else None)
        self.driver.set_script_timeout(PATIENCE)
        self.size(1280, 900)

    def close(self):
        self.driver.quit()
        shutil.rmtree(self.profile, ignore_errors=True)

    def size(self, width, height):
        """Sets the size of the page itself, which a window cannot make as narrow as a telephone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def shown(self, css):
        return [element for element in self.all(css) if element.is_displayed()]

    def wait(self, what, condition, patience=PATIENCE):
        """Waits until a condition gives something true, and returns that."""
        def tried(_):
            try:
                return condition()
            except (NoAlertPresentException, StaleElementReferenceException):
                return None
        try:
            return WebDriverWait(self.driver, patience, poll_frequency=0.1).until(tried)
        except TimeoutException:
            raise Failed(f"{what}: not within {patience:.0f} s") from None

    def one(self, css, what=None):
        """Waits for an element that is shown."""
        return self.wait(what or f"`{css}` is shown", lambda: next(iter(self.shown(css)), None))

    def click(self, css):
        """Clicks what is shown, also if it is drawn anew meanwhile."""
        def clicked():
            for element in self.shown(css):
                self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
                try:
                    element.click()
                except WebDriverException as error:
                    if "intercepted" not in str(error):
                        raise
                    return None
                return True
            return None
        self.wait(f"`{css}` can be clicked", clicked)

    def text(self, css):
        """The text of the first element, shown or not; read at once."""
        return self.driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", css)

    def number(self, css):
        return self.driver.execute_script("return document.querySelectorAll(arguments[0]).length", css)

    def open(self):
        self.driver.get(self.url)
        if self.token:
            dialog = self.one("#token-dialog[open] #token", "the dialog asks for the token")
            dialog.send_keys(self.token, Keys.ENTER)
        self.wait("the pipelines are listed", lambda: self.number("#pipeline:not([disabled]) option"))
        self.wait("the server is ready", lambda: self.text("#health .words").startswith("Ready"))

    def ask(self, question, wait=True):
        """Asks and returns the state of the turn."""
        field = self.one("#question")
        field.clear()
        field.send_keys(question, Keys.ENTER)
        self.wait("the question is asked", lambda: not field.get_attribute("value"))
        return self.ended() if wait else None

    def ended(self):
        self.wait("the turn began", lambda: self.number(".turns .turn"))
        self.wait("the turn ended", lambda: not self.number(".turns .turn.running"))
        states = self.all(".turns .turn")[-1].get_attribute("class").split()
        return next((state for state in ("answered", "idk", "failed", "stopped") if state in states), "?")

    def tab(self, key):
        self.click(f"#tab-{key}")
        self.wait(f"the view `{key}` is shown", lambda: self.shown(f"#panel-{key}"))

    def select(self, pipeline):
        self.driver.execute_script(
            "const s = document.getElementById('pipeline'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))", pipeline)
        self.wait("the pipeline is ready", lambda: self.text("#health .words").startswith("Ready"))

    def shot(self, name):
        if self.shots:
            os.makedirs(self.shots, exist_ok=True)
            self.driver.save_screenshot(os.path.join(self.shots, name))

    def complaints(self):
        """What the browser complained about; refused tokens, a file without a reader and a withdrawn link are part of the checks."""
        entries = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        return [entry for entry in entries if not (self.token and "401" in entry) and "no%20document.exe" not in entry
                and not ("/shared/" in entry and "403" in entry)]

    def need(self, condition, problem):
        if not condition:
            raise Failed(problem)


def loads(page):
    page.open()
    complaints = page.complaints()
    page.need(not complaints, f"the console has errors: {complaints[:4]}")
    if os.environ.get("PAGE_PIPELINE"):
        page.select(os.environ["PAGE_PIPELINE"])
    return f"{page.number('#pipeline option')} pipelines"


def answers(page):
    page.click("#fresh")
    state = page.ask(QUESTION)
    page.need(state in ("answered", "idk"), f"the turn is `{state}`: {page.text('.turns .turn .answer')}")
    page.need(page.text(".turns .turn .answer").strip(), "the answer is empty")
    page.shot("talk-light.png")
    return state


def workflow(page):
    page.click(".turn .workflow")
    page.one("#panel-turn .steps .step")
    page.click("#panel-turn .row .tools button:first-child")
    page.wait("every step is filled", lambda: not page.number(".step:not(.done)"))
    page.need(page.number(".step table.hits tbody tr[data-passage]"), "no list of passages")
    times = [element.text for element in page.shown(".step .took")]
    page.need(times and all(times), f"steps without a time: {times}")
    page.need(any(page.driver.execute_script("return [...document.querySelectorAll('.step .time .bar span')].map(e => e.getBoundingClientRect().width)")),
              "no bar of a step has a length")
    page.need(page.text("section[aria-label=Provenance]").find("Plan") >= 0, "no provenance")
    fields = page.driver.execute_script("return [...document.querySelectorAll('.step dl.fields dd')].map(e => e.textContent)")
    page.need(any("by the editors" in field for field in fields), f"no metadata: {fields[:4]}")
    return f"{len(times)} steps, {page.number('tr[data-passage]')} rows of passages, {len(fields)} fields"


def movement(page):
    if not page.number("table.moves"):
        return "skipped: this pipeline moves no lists"
    cells = page.driver.execute_script("return [...document.querySelectorAll('table.moves tbody .from-place')].map(e => e.textContent)")
    page.need(any(sign in cell for cell in cells for sign in "↑↓="), f"no movement is told: {cells[:6]}")
    return f"{page.number('table.moves')} tables of movement, {page.number('tr.gone')} rows of dropped passages"


def citation(page):
    if not page.number(".turns .cite"):
        return "skipped: the answer cites nothing"
    page.click(".turns .cite")
    page.wait("the cited passage is marked", lambda: page.shown(".card.looked"))
    words = page.number(".card.looked mark b")
    return f"{words} cited words are marked"


def skipping(page):
    """The pipeline runs without its first retriever."""
    page.tab("tune")
    if not page.number("input[data-skip]"):
        return "skipped: no node can be skipped"
    node = page.driver.execute_script("return document.querySelector('input[data-skip]').dataset.skip")
    page.click(f'input[data-skip="{node}"]')
    page.wait("the conversation is marked as adjusted", lambda: node in page.text("#adjusted") and page.shown("#adjusted"))
    state = page.ask(QUESTION)
    page.need(state in ("answered", "idk", "failed"), f"the turn is `{state}`")
    page.tab("turn")
    step = f'.step[data-node="{node}"]'
    page.wait("the step is marked as skipped", lambda: page.number(f"{step}.skipped"))
    page.need("skipped" in page.text(f"{step} > summary"), "the step does not say that it was skipped")
    if page.number(f'{step} .body'):
        page.need(not page.number(f"{step} .body tr[data-passage]") or "passes through" in page.text(f"{step} .body"), "the skipped retriever has passages")
    return f"{node} is off: {state}"


def alpha(page):
    page.tab("tune")
    page.click("#panel-tune .reset")
    page.wait("the note is gone", lambda: not page.shown("#adjusted"))
    if not page.number("input[data-alpha]"):
        return "skipped: no fusion of two inputs"
    slider = page.one("input[data-alpha]")
    before = slider.get_attribute("value")
    slider.send_keys(Keys.END)
    page.wait("the weights are told", lambda: "weighs" in page.text("#adjusted"))
    state = page.ask(QUESTION)
    page.need(state in ("answered", "idk"), f"the turn is `{state}`")
    page.tab("turn")
    page.wait("the weights are among the provenance", lambda: "weights" in page.text("section[aria-label=Provenance]"))
    page.tab("tune")
    page.click("#panel-tune .reset")
    return f"α was {before}, then 1"


def stops(page):
    """A turn that runs is stopped; one that was faster is fine."""
    names = page.driver.execute_script("return [...document.querySelectorAll('#pipeline option')].map(e => e.value)")
    first = page.driver.execute_script("return document.getElementById('pipeline').value")
    slow = next((name for name in names if "generate" in name), first)
    page.select(slow)
    page.ask("Explain in many words what a pipeline is, what an epoch is, and how both go together.", wait=False)


    def stopped():
        """Clicks Stop, unless the turn is done already."""
        for button in page.shown("#stop"):
            # It may be gone by now.
            page.driver.execute_script("arguments[0].click()", button)
        return not page.number(".turns .turn.running")
    page.wait("the turn ends", stopped)
    state = page.ended()
    page.need(state in ("stopped", "answered", "idk"), f"the turn is `{state}`")
    page.one("#send", "one can ask again")
    page.select(first)
    return state


def edits(page):
    """A question is edited; both versions are there."""
    page.click(".turn .edit")
    area = page.one(".said textarea")
    area.clear()
    area.send_keys("What is a corpus?", Keys.ENTER)
    page.ended()
    page.wait("the versions are counted", lambda: "2 of 2" in page.text(".versions"))
    page.click(".versions button:first-child")
    page.wait("the first version is shown", lambda: page.text(".turn .question") == QUESTION)
    return "two versions"


def hostile(page):
    page.click("#fresh")
    page.wait("the conversation is empty", lambda: not page.number(".turn"))
    page.driver.execute_script("const q = document.getElementById('question'); q.value = arguments[0]", HOSTILE)
    page.click("#send")
    state = page.ended()
    page.need(page.driver.title == "turnflow", "the text of a question was run")
    page.need(not page.number("main img, main script, main iframe"), "the text of a question became elements")
    said = page.text(".turn .question")
    page.need("<img src=x" in said and "\u202e" not in said, f"the question is shown as {said!r}")
    return state


MARKDOWN = """
# Rules\n\nA **bold** word [1], `code [1]`, a_b_c.\n\n1. one\n2. two\n   - inner\n\n| a | b |\n|---|---|\n| 1 | 2 |\n
```\n<script>document.title='owned'</script>\n```\n
![pixel](https://example.org/x.png) [a](javascript:document.title='owned') [b](data:text/html,x) [c](https://example.org/) [d](/logout?all=1) [e](//example.org) [f](page.html) <img src=x onerror="document.title='owned'"> <iframe src="/"></iframe>
"""
RENDERED = """
const done = arguments[1];
import('/page/markdown.js').then(({ markdown }) => {
  const made = document.createElement('div');
  made.append(...markdown(arguments[0], raw => `cited${raw}`));
  document.body.append(made);
  const tags = [...made.querySelectorAll('*')].map(of => of.tagName.toLowerCase());
  const links = [...made.querySelectorAll('a')].map(of => of.getAttribute('href'));
  const told = { tags, links, text: made.textContent, requests: performance.getEntriesByType('resource').filter(of => of.name.includes('example.org')).length };
  made.remove();
  done(told);
}, error => done({ error: String(error) }));
"""


def markdown(page):
    told = page.driver.execute_async_script(RENDERED, MARKDOWN)
    page.need("error" not in told, f"the module fails: {told}")
    for tag in ("h4", "strong", "code", "ol", "ul", "table", "pre"):
        page.need(tag in told["tags"], f"no {tag} in {told['tags']}")
    page.need(not {"img", "script", "iframe"} & set(told["tags"]), f"markup became elements: {told['tags']}")
    page.need(told["links"] == ["https://example.org/x.png", "https://example.org/"], f"links are {told['links']}")
    page.need(told["text"].count("cited[1]") == 1 and "a_b_c" in told["text"], f"the text is {told['text']!r}")
    page.need(told["requests"] == 0 and page.driver.title == "turnflow", "an answer has loaded or run something")
    return f"{len(told['tags'])} elements"


def judged(page):
    thumb = ".turn .thumb[data-helpful=false]"
    page.click(thumb)
    page.wait("the thumb is pressed", lambda: page.number(thumb + "[aria-pressed=true]"))
    page.wait("the feedback is kept", lambda: "not helpful" in page.text("#said"))
    as_test(page, "bad")
    page.click(".turn .thumb[data-helpful=true]")
    page.wait("the feedback is kept", lambda: "was helpful" in page.text("#said"))
    as_test(page, "good")
    page.click(thumb)
    page.wait("the feedback is kept", lambda: "not helpful" in page.text("#said"))
    return "not helpful, helpful, not helpful"


def as_test(page, name):
    """Copies the answer as a test, into a file for those who run it."""
    page.driver.execute_script("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); };")
    page.click(".turn .as-test")
    copied = page.driver.execute_script("return window.copied;")
    page.need("User(" in copied and "Expect(" in copied, f"copied is {copied!r}")
    if page.tests:
        with open(os.path.join(page.tests, f"{name}.test.ron"), "w", encoding="utf-8") as file:
            file.write(f"[\n{copied}]\n")


def reloading(page):
    """The conversation survives a reload of the page, and a new one does not bring it back."""
    page.click("#fresh")
    page.ask(QUESTION)
    answer = page.text(".turns .turn .answer")
    cites = page.number(".turns .turn .cite")
    page.driver.refresh()
    page.wait("the server is ready", lambda: page.text("#health .words").startswith("Ready"))
    page.wait("the answer is there again", lambda: page.text(".turns .turn .answer") == answer)
    page.need(page.number(".turns .turn .cite") == cites, "the citations are lost")
    page.click(".turn .workflow")
    page.wait("the steps are there", lambda: page.number("#panel-turn .steps .step.done"))
    page.ask("And how is it read?")
    page.need(page.number(".turns .turn") == 2, "the conversation does not go on")
    page.click("#fresh")
    page.driver.refresh()
    page.wait("the server is ready", lambda: page.text("#health .words").startswith("Ready"))
    page.wait("the page knows the caller", lambda: page.driver.execute_script("return !document.getElementById('sign-out').hidden") == bool(page.token))
    page.need(not page.number(".turns .turn"), "a conversation that was ended came back")
    return "two turns"


def several_conversations(page):
    """Conversations are listed by their first questions, opened, renamed and deleted."""
    def listed():
        page.wait("the list is shown", lambda: page.shown("#conversations h3"))
        return page.driver.execute_script("return [...document.querySelectorAll('#conversations .title')].map(e => e.textContent)")
    page.click("#all")
    page.wait("the conversations are listed", lambda: QUESTION in listed())
    before = listed()
    page.need("\u202e" not in "".join(before) and not page.number("#conversations img, #conversations script"), "a title became elements")
    page.need(any("<img src=x" in title for title in before), f"the hostile question is not listed: {before}")
    page.shot("conversations.png")
    page.click(f"#conversations li:nth-child({before.index(QUESTION) + 1}) .name")
    page.wait("the conversation is open", lambda: page.number(".turns .turn") == 2)
    page.need(not page.shown("#conversations"), "the list stays open")
    page.click("#all")
    page.click("#conversations .current [aria-label^=Rename]")
    field = page.one("#conversations input")
    field.clear()
    field.send_keys("About fusion", Keys.ENTER)
    page.wait("it has its new name", lambda: "About fusion" in listed())
    page.driver.refresh()
    page.wait("it is open after a reload", lambda: page.number(".turns .turn") == 2)
    page.click("#all")
    page.wait("it has its name after a reload", lambda: "About fusion" in listed())
    page.click("#conversations .current [aria-label^=Delete]")
    page.wait("it is asked", lambda: page.driver.switch_to.alert).accept()
    page.wait("it is deleted", lambda: "About fusion" not in listed() and not page.number(".turns .turn"))
    page.click("#all")
    return f"{len(before)} conversations"


def others(page):
    """Who signs in after somebody else does not see that person's conversations."""
    if not page.other:
        return "skipped: there is no other token"
    page.click("#fresh")
    page.ask("A question of the first caller?")

    def sign_in(token):
        page.click("#sign-out")
        page.click("#sign-out-form .strong")
        page.one("#token-dialog[open] #token", "the dialog asks for the token").send_keys(token, Keys.ENTER)
        page.wait("the server is ready", lambda: page.text("#health .words").startswith("Ready"))
        page.wait("the caller is signed in", lambda: page.shown("#sign-out"))
        page.click("#all")
        page.one("#conversations h3")
        return page.text("#conversations")
    seen = sign_in(page.other)
    page.need("first caller" not in seen and seen.startswith("0 conversations"), f"another caller sees {seen!r}")
    page.need(not page.number(".turns .turn"), "another caller sees the open conversation")
    back = sign_in(page.token)
    page.need("first caller" in back, f"the caller's own conversations are lost: {back!r}")
    page.click("#all")
    return "two callers"


SEARCHES = """
const done = arguments[0];
const node = (id, inputs, corpora, output = 'Hits') => ({ id, inputs, corpora, output });
import('/page/search.js').then(({ searches, byDocument }) => {
  const nodes = [node('q', [], [], 'Queries'), node('a', ['q'], ['one']), node('b', ['q'], ['two']), node('f', ['a', 'b'], []), node('c', ['q'], ['three'])];
  const corpora = ['one', 'two', 'three', 'four'].map(name => ({ name }));
  const hit = (passage, document) => ({ passage, document });
  done({ found: searches({ nodes, corpora }), routed: searches({ nodes, corpora: corpora.slice(0, 2), needs_collection: true }),
    documents: byDocument([{ corpora: ['one'], hits: [hit('d#1', 'd'), hit('e#1', 'e'), hit('d#2', 'd')] }, { corpora: ['two'], hits: [hit('x#1', 'x')] }]).map(of => [of.document, of.hits.length]) });
}, error => done({ error: String(error) }));
"""


def searching(page):
    """Documents of every corpus are found, also hostile ones, and a click opens the document with the passage marked."""
    told = page.driver.execute_async_script(SEARCHES)
    page.need(told.get("found") == {"all": [{"node": "c", "corpora": ["three"]}, {"node": "f", "corpora": ["one", "two"]}], "left": ["four"]}, f"the searches are {told}")
    page.need([of["collection"] for of in told["routed"]["all"]] == ["one", "two"], f"the searches are {told}")
    page.need(told["documents"] == [["d", 2], ["x", 1], ["e", 1]], f"the documents are {told}")
    page.tab("search")
    page.one("#search-text").send_keys("reciprocal rank fusion", Keys.ENTER)
    page.wait("documents are found", lambda: page.number(".found .card"))
    found = page.driver.execute_script("return [...document.querySelectorAll('.found > .card')].map(e => e.dataset.document)")
    page.need("retrieval.md" in found and any(document.startswith("note") for document in found), f"not every corpus is searched: {found}")
    page.need(page.number(".found mark b"), "the words are not marked")
    page.need(not page.number(".found img, .found script") and page.driver.title == "turnflow", "the text of a document became elements")
    page.shot("search.png")
    here = page.driver.current_window_handle
    page.click(".found .card .from a")
    page.wait("the document opens", lambda: len(page.driver.window_handles) == 2)
    page.driver.switch_to.window(next(of for of in page.driver.window_handles if of != here))
    page.wait("its passage is marked", lambda: page.shown("section.cited"))
    page.driver.close()
    page.driver.switch_to.window(here)
    return f"{len(found)} documents"


def sharing(page):
    """A link shows a turn to somebody without a token, and can be withdrawn."""
    page.click("#fresh")
    page.ask(QUESTION)
    page.click(".turn .share")
    link = page.one(".turn .shared input").get_attribute("value")
    answer, here = page.text(".turn .answer"), page.driver.current_window_handle
    page.shot("share.png")
    page.driver.switch_to.new_window("tab")
    page.driver.get(link.replace(link.split("/shared/")[0], page.url))
    page.wait("the shared turn is shown", lambda: page.text("main .answer") == answer)
    page.need(page.text("main h1") == QUESTION and page.number("main .card .text"), f"it shows {page.text('main')!r}")
    page.click("main .cite")
    page.wait("the cited passage is marked", lambda: page.shown(".card.looked mark"))
    page.need(not page.number("textarea, input"), "it is not read-only")
    page.shot("shared.png")
    page.driver.switch_to.window(here)
    page.click(".turn .shared [aria-label^=Withdraw]")
    page.wait("the link is withdrawn", lambda: not page.number(".turn .shared input"))
    page.driver.switch_to.window(next(of for of in page.driver.window_handles if of != here))
    page.driver.refresh()
    page.wait("it is not shown any more", lambda: "withdrawn" in page.text("main .problem"))
    shows = page.driver.current_window_handle
    # Nobody could withdraw the link of a conversation that is deleted.
    page.driver.switch_to.window(here)
    page.click(".turn .share")
    link = page.one(".turn .shared input").get_attribute("value")
    page.click("#all")
    page.click("#conversations .current [aria-label^=Delete]")
    asked = page.wait("it is asked", lambda: page.driver.switch_to.alert)
    page.need("link" in asked.text, f"the question says nothing of the link: {asked.text}")
    asked.accept()
    page.wait("it is deleted", lambda: not page.number(".turns .turn"))
    page.click("#all")
    page.driver.switch_to.window(shows)
    page.driver.get(link.replace(link.split("/shared/")[0], page.url))
    page.wait("the link has ended, too", lambda: "withdrawn" in page.text("main .problem"))
    page.driver.close()
    page.driver.switch_to.window(here)
    return "two links"


def listed(page):
    """Documents that were put over HTTP are listed, with their texts."""
    page.tab("corpora")
    if not page.number("details[data-documents]"):
        return "skipped: no corpus has documents of its own"
    page.click("details[data-documents] > summary")
    page.wait("the documents are listed", lambda: page.number(".documents .card"))
    page.click(".documents .card summary")
    page.wait("the text is shown", lambda: page.shown(".documents .card .answer-text"))
    page.need(page.driver.title == "turnflow" and not page.number(".documents img, .documents script"), "the text of a document became elements")
    page.need("<img" in page.text(".documents"), "the hostile document is not listed")
    documents = page.number(".documents .card")
    files = [("added page.html", "<h1>Tides</h1><p>The tide is high at noon."), ("prices.csv", "item,price\nticket,4\n"), ("no document.exe", "x")]
    with tempfile.TemporaryDirectory() as directory:
        paths = [os.path.join(directory, name) for name, _ in files]
        for path, (_, text) in zip(paths, files):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        page.driver.find_element(By.CSS_SELECTOR, ".documents input[type=file]").send_keys("\n".join(paths))
        page.wait("the files are added", lambda: page.number(".documents .card") == documents + 2)
    page.wait("the file without a reader is named", lambda: "no document.exe" in page.text(".documents .problem"))
    page.click(".documents .card summary")
    page.shot("documents.png")
    page.click(".documents .card [aria-label^='Delete added page']")
    page.driver.switch_to.alert.accept()
    page.wait("the document is deleted", lambda: page.number(".documents .card") == documents + 1)
    return f"{documents} documents, 2 files added, 1 document deleted"


def theme(page):
    page.click("#fresh")
    page.ask(QUESTION)
    before = page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    page.driver.execute_script("if (document.documentElement.dataset.theme === 'dark') document.getElementById('theme').click()")
    page.click("#theme")
    after = page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    page.need(page.driver.execute_script("return document.documentElement.dataset.theme") == "dark", "the page is not dark")
    page.tab("turn")
    page.shot("workflow-dark.png")
    page.click("#theme")
    return f"{before}, then {after}"


def graph(page):
    page.tab("graph")
    page.wait("the graph has nodes", lambda: page.number("#panel-graph .node"))
    page.wait("nodes tell their times", lambda: "ms" in page.text("#panel-graph svg"))
    page.click("#wide")
    node = page.one("#panel-graph .node.operator")
    page.driver.execute_script("arguments[0].focus()", node)
    node.send_keys(Keys.ENTER)
    page.one("#panel-graph .detail .facts", "the node's settings are shown")
    boxes = page.driver.execute_script("return [...document.querySelectorAll('#panel-graph .corpus rect')].map(e => e.getBoundingClientRect()).map(r => [r.left, r.right, r.top, r.bottom])")
    apart = all(a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2] for at, a in enumerate(boxes) for b in boxes[:at])
    page.need(apart and len(boxes) > 1, f"the boxes of corpora are over each other: {boxes}")
    page.shot("graph.png")
    page.click("#wide")
    page.tab("corpora")
    page.wait("the corpora are counted", lambda: page.number("#panel-corpora tbody td"))
    return f"{page.number('#panel-graph .node')} nodes, {page.number('#panel-graph .edge')} edges"


def narrow(page):
    page.size(360, 740)
    views = []
    for key in ("talk", "turn", "search", "graph", "tune", "corpora", "reports"):
        if not page.shown(f"#tab-{key}"):
            continue
        page.tab(key)
        width, most = page.driver.execute_script(WIDE)
        page.need(width <= most, f"the view `{key}` makes the page {width} pixels wide of {most}")
        views.append(key)
    page.tab("talk")
    page.shot("narrow.png")
    page.size(1280, 900)
    return ", ".join(views)


def keyboard(page):
    """Tab reaches the main controls."""
    page.wait("the page is wide again", lambda: not page.shown("#tab-talk"))
    page.driver.execute_script("document.activeElement?.blur(); window.getSelection().removeAllRanges()")
    wanted = {"pipeline", "theme", "question", "send", "fresh"}
    met = set()
    for _ in range(250):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        active = page.driver.execute_script("const e = document.activeElement; return [e?.id ?? '', e?.getAttribute('role') ?? '']")
        met.add(active[0])
        if active[1] == "tab":
            met.add("tab")
        if wanted | {"tab"} <= met:
            break
    page.need(wanted | {"tab"} <= met, f"Tab does not reach {sorted((wanted | {'tab'}) - met)}")
    return ", ".join(sorted(wanted))


def names(page):
    for key in ("turn", "search", "graph", "tune", "corpora"):
        page.tab(key)
        nameless = page.driver.execute_script(NAMELESS)
        page.need(not nameless, f"without an accessible name: {nameless[:4]}")
    return "all controls"


VIOLATIONS = """
const done = arguments[0];
axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => done(violations.map(of => `${of.id}: ${of.nodes[0].html.slice(0, 120)}`)));
"""


def accessible(page):
    """axe-core finds nothing, in light and in dark."""
    if not page.axe:
        return "skipped: there is no axe-core"
    with open(page.axe, encoding="utf-8") as file:
        page.driver.execute_script(file.read())
    page.click("#all")
    page.one("#conversations h3")
    seen = 0
    for _ in range(2):
        for key in ("turn", "search", "graph", "tune", "corpora"):
            page.tab(key)
            found = page.driver.execute_async_script(VIOLATIONS)
            page.need(not found, f"the view `{key}`: {found[:4]}")
            seen += 1
        page.click("#theme")
    page.click("#all")
    return f"{seen} views"


SMALL = """
return [...document.querySelectorAll('button, select, textarea, input, summary, [role=tab], .from a')].filter(e => e.checkVisibility() && !e.matches('.cite, .unseen, [type=file]'))
  .map(e => [e, (e.closest('label') ?? e).getBoundingClientRect()]).filter(([, at]) => at.width && at.height < 43.5).map(([e]) => e.outerHTML.slice(0, 100));
"""


def fingers(page):
    """On a screen that is touched, controls are high enough for a finger."""
    touch = lambda width, height, on: (
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": on}),
        page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": on, "maxTouchPoints": 5 if on else 1}))
    touch(390, 844, True)
    page.need(page.driver.execute_script("return matchMedia('(pointer: coarse)').matches"), "the browser does not act as a telephone")
    for key in ("talk", "turn", "search", "graph", "tune", "corpora"):
        page.tab(key)
        small = page.driver.execute_script(SMALL)
        page.need(not small, f"the view `{key}` has controls that are too small: {small[:4]}")
        width, most = page.driver.execute_script(WIDE)
        page.need(width <= most, f"the view `{key}` makes the page {width} pixels wide of {most}")
    page.tab("talk")
    page.shot("touched.png")
    touch(1280, 900, False)
    return "44 pixels"


def quiet(page):
    complaints = page.complaints()
    page.need(not complaints, f"the console complained: {complaints[:4]}")
    return "no errors, no violations of the content security policy"


CHECKS = [loads, answers, judged, markdown, workflow, movement, citation, edits, skipping, alpha, stops, hostile, reloading, several_conversations, searching, sharing, others, listed, theme, graph, narrow, keyboard, names, accessible, fingers, quiet]


def main(arguments):
    if not arguments:
        print(__doc__)
        return 2
    url, token, shots, axe, tests = (arguments + ["", "", "", ""])[:5]
    page = Page(url, token, shots, axe, tests)
    try:
        for check in CHECKS:
            began = time.monotonic()
            try:
                told = check(page)
            except Exception as error:
                page.shot("failed.png")
                print(f"FAILED {check.__name__}: {getattr(error, 'msg', None) or error}", flush=True)
                for entry in page.driver.get_log("browser")[-10:]:
                    print(f"  console: {entry['message']}")
                if not isinstance(error, (Failed, WebDriverException)):
                    raise
                return 1
            print(f"ok {check.__name__}: {told} ({time.monotonic() - began:.1f} s)", flush=True)
    finally:
        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
