"""Signing in through the pages of Canaille, an identity provider: page_provider.py URL USER PASSWORD GROUP.

Needs what page_browser.py needs. The provider asks who it is, for the password, and whether the page may know it.
"""

import sys

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from page_browser import QUESTION, Page

url, user, password, group = sys.argv[1:5]
page = Page(url, "", None)
driver = page.driver


def shown(selector):
    return next((field for field in driver.find_elements(By.CSS_SELECTOR, selector) if field.is_displayed()), None)


try:
    driver.get(url)
    page.one("#token-dialog[open] #sign-in", "the dialog offers to sign in")
    page.click("#sign-in")
    page.wait("the provider asks who it is", lambda: shown("input[name=login]")).send_keys(user, Keys.ENTER)
    page.wait("it asks for the password", lambda: shown("input[name=password]")).send_keys(password, Keys.ENTER)
    page.wait("it asks whether the page may know that", lambda: shown("button[name=answer][value=accept]")).click()
    page.wait("the page is ready", lambda: driver.current_url == f"{url}/" and page.text("#health .words").startswith("Ready"))
    caller = driver.execute_async_script("const done = arguments[0]; import('/page/api.js').then(api => api.get('/v1/caller')).then(done)")
    page.need(caller["name"] == f"jwt/{user}" and caller["groups"] == [group], f"the caller is {caller}")
    page.need(page.ask(QUESTION) == "answered", "the question is not answered")
    print("ok: people sign in at Canaille")
finally:
    page.close()
