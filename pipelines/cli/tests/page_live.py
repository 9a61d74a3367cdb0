"""An answer on the page of `turnflow serve` changes with the documents: page_live.py URL TOKEN DIRECTORY [SHOTS].

Needs what page_browser.py needs. DIRECTORY has the documents of the pipeline.
"""

import pathlib
import sys

from page_browser import QUESTION, Page
from selenium.webdriver.common.by import By

url, token, directory = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
shots = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 and sys.argv[4] else None
page = Page(url, token, shots)
try:
    page.open()
    page.need(page.ask(QUESTION) == "answered", "there is no answer")
    before = page.wait("the answer", lambda: [e for e in page.shown(".turn.answered .answer") if e.text])[0].text
    assert not page.all(".former"), "nothing has changed yet"
    new = "How reciprocal rank fusion scores a passage: it adds the reciprocal ranks of the passage in all lists."
    (directory / "aaa.md").write_text(f"# Reciprocal rank fusion\n\n{new}\n")
    former = page.wait("the new answer", lambda: page.shown(".turn .former"))[0]
    answer = page.shown(".turn.answered .answer")[0].text
    assert "in all lists" in answer, answer
    steps = page.driver.execute_script("return [...document.querySelectorAll('.steps .gist')].map(e => e.textContent)")
    assert "run again after the change" in steps and "not run" not in steps, steps
    former.find_element(By.CSS_SELECTOR, "summary").click()
    said = page.wait("the old answer", lambda: [e for e in page.shown(".former p") if e.text])[0].text
    assert said.split()[:5] == before.split()[:5], (said, before)
    if shots:
        page.driver.save_screenshot(str(shots / "live.png"))
    # A reload of the page keeps both.
    page.driver.refresh()
    page.wait("the kept answers", lambda: page.all(".turn .former"))
    print("ok: an answer changes with the documents")
finally:
    page.close()
    (directory / "aaa.md").unlink(missing_ok=True)
