"""Signing in on the page of `turnflow serve` by OpenID Connect: page_sign_in.py URL USER [SHOTS].

Needs what page_browser.py needs, and a provider such as oidc-provider-mock, which knows USER.
"""

import sys

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from page_browser import QUESTION, Page

url, user = sys.argv[1], sys.argv[2]
page = Page(url, "", sys.argv[3] if len(sys.argv) > 3 else None)
driver = page.driver
ready = lambda: page.text("#health .words").startswith("Ready")


def signs_in(keeps):
    page.one("#token-dialog[open] #sign-in", "the dialog offers to sign in")
    if keeps:
        page.click("#token-keep")
    page.shot("sign-in.png")
    page.click("#sign-in")
    field = page.wait("the provider asks who it is", lambda: next(iter(driver.find_elements(By.NAME, "sub")), None))
    field.clear()
    field.send_keys(user, Keys.ENTER)
    page.wait("the page is ready", lambda: page.driver.current_url == f"{url}/" and ready())


try:
    driver.get(url)
    signs_in(keeps=False)
    page.wait("one can sign out", lambda: page.shown("#sign-out"))
    page.need(page.ask(QUESTION) == "answered", "the question is not answered")
    name = driver.execute_async_script("const done = arguments[0]; import('/page/api.js').then(api => api.get('/v1/caller')).then(done)")
    page.need(name["name"] == f"jwt/{user}" and name["documents"] == "Read", f"the caller is {name}")
    driver.refresh()
    page.wait("the tab keeps the token", ready)
    # Another tab has none, unless it is kept.
    driver.switch_to.new_window("tab")
    driver.get(url)
    signs_in(keeps=True)
    driver.switch_to.new_window("tab")
    driver.get(url)
    page.wait("a new tab has the token that is kept", ready)
    page.click("#all")
    page.wait("the caller's conversations are there", lambda: QUESTION in page.text("#conversations"))
    page.click("#sign-out")
    page.click("#sign-out-form .strong")
    page.one("#token-dialog[open]", "nobody is signed in")
    stored = driver.execute_script("return [localStorage.getItem('turnflow.token'), sessionStorage.getItem('turnflow.token')]")
    page.need(stored == [None, None], f"a token is left: {stored}")
    # So is the tab that has kept the token; one with a token of its own is not.
    out = driver.current_window_handle
    driver.switch_to.window(driver.window_handles[1])
    page.one("#token-dialog[open]", "the other tab is signed out")
    driver.switch_to.window(driver.window_handles[0])
    page.need(page.ask(QUESTION) == "answered" and not page.number("#token-dialog[open]"), "the tab with its own token is signed out")
    driver.switch_to.window(out)
    # A code that was not asked for here is refused.
    driver.get(f"{url}/?code=stolen&state=other")
    page.wait("it is refused", lambda: "not begun here" in page.text("#token-problem"))
    page.need(driver.current_url == f"{url}/", f"the address keeps the code: {driver.current_url}")
    print("ok: people sign in by OpenID Connect")
finally:
    page.close()
