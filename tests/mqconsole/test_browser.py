"""Chromium walks through the console, as a person does: mouse, forms, live figures, dark mode, a phone's width.

With CONSOLE_PICTURES=DIRECTORY the pictures of docs/operate/console.md are written there.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait

from scripts.controller_set import ControllerSet
from scripts.daemons import ROOT, Daemon, reserve, wait_ready
from skylark import Admin, Message
from skylark.sdk.blocking import Producer, PullConsumer
from skylark.sdk.testing import Cluster
from tests.e2e.switches import QUICK
from tests.mqconsole.consoles import give_up
from tests.support.amounts import share_of

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--disable-extensions", "--disable-software-rasterizer", "--in-process-gpu", "--no-zygote",
    "--renderer-process-limit=1",
)  # fmt: skip
WAIT_S = 60
NO_PAGE = "/topics/nothing"
SERIOUS = ("serious", "critical")

pytestmark = pytest.mark.needs("Chromium")


class Page:
    """A page, with the actions of a person at the browser."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address
        folder = os.environ.get("CONSOLE_PICTURES")
        self._pictures = Path(folder) if folder else None

    def open(self, path: str) -> None:
        self.driver.get(self.address + path)

    def text(self, selector: str) -> str:
        """The text of an element, read in one step, as the page may replace the element meanwhile."""
        return str(self.driver.execute_script("return document.querySelector(arguments[0]).innerText", selector))

    def click(self, selector: str) -> None:
        self._click(lambda: self.driver.find_element(By.CSS_SELECTOR, selector))

    def unfold(self, title: str) -> None:
        self._click(lambda: self.driver.find_element(By.XPATH, f"//summary[normalize-space()='{title}']"))

    def _click(self, find: Callable[[], WebElement]) -> None:
        def clicked(_: Any) -> bool:
            element = find()
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True

        # A page that follows its figures may replace the element between the steps.
        moving = (StaleElementReferenceException,)
        WebDriverWait(self.driver, WAIT_S, 0.05, ignored_exceptions=moving).until(clicked, "it can be clicked")

    def fill(self, action: str, **fields: str) -> None:
        """Fill in the form that leads to ``action``, and send it off."""
        form = self.driver.find_element(By.CSS_SELECTOR, f'form[action="{action}"]')
        for name, value in fields.items():
            element = form.find_element(By.NAME, name)
            if element.tag_name == "select":
                Select(element).select_by_value(value)
            else:
                element.clear()
                element.send_keys(value)
        button = form.find_element(By.TAG_NAME, "button")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        self.driver.execute_script("window.isBeforeTheAnswer = true")
        button.click()

        # The answer to a form is another page, also where its address is the same.
        def answered(_: Any) -> bool:
            return self.driver.execute_script("return window.isBeforeTheAnswer") is None

        # Between two pages the browser may have no document that could be asked.
        wait = WebDriverWait(self.driver, WAIT_S, 0.05, ignored_exceptions=(WebDriverException,))
        wait.until(answered, f"the answer to {action}")

    def until(self, reached: Callable[[], bool], what: str) -> None:
        def check(_: Any) -> bool:
            return reached()

        WebDriverWait(self.driver, WAIT_S, 0.1).until(check, what)

    def faults(self, *rules: str) -> list[str]:
        """The serious faults that axe-core finds in this page; with ``rules`` only by these rules."""
        if not AXE.exists():
            return []
        if not self.driver.execute_script("return 'axe' in window"):
            self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        what = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found = self.driver.execute_async_script("axe.run(arguments[0]).then(arguments[1])", what)
        assert found["passes"] != []
        return [
            f"{self.driver.current_url}: {one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
        ]

    def emulate(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def picture(self, name: str, *, height: int = 0) -> None:
        """Keep the page as it looks now, down to its end or to ``height``, if anybody wants pictures."""
        if self._pictures is None:
            return
        whole = int(self.driver.execute_script("return document.body.scrollHeight"))
        width = int(self.driver.execute_script("return window.innerWidth"))
        dark = bool(self.driver.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches"))
        self.emulate(dark=dark, width=width, height=min(whole, height or whole))
        self.driver.save_screenshot(str(self._pictures / f"{name}.png"))
        self.emulate()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    home = tmp_path_factory.mktemp("chromium")
    for flag in (*FLAGS, f"--user-data-dir={home / 'data'}", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(DRIVER, env={**os.environ, "HOME": str(home)}))
    try:
        made.set_page_load_timeout(WAIT_S)
        made.set_script_timeout(WAIT_S)
        yield made
    finally:
        made.quit()


def console_daemon(home: Path, nameserver: str) -> Daemon:
    port = reserve()
    command = [
        sys.executable, "-m", "skylark.mqconsole", "-n", nameserver, "--listen-port", str(port.number),
        "--poll-interval", "2",
    ]  # fmt: skip
    return Daemon("mqconsole", command, port.number, home / "mqconsole.log", port)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Cluster]:
    """Two sets, and more topics and groups than the walk needs: what people look at is not empty."""
    with Cluster(2, slaves=1, home=tmp_path) as made:
        for topic, group, count in (("payments", "billing", 30), ("stock", "warehouse", 20), ("mails", "mailer", 10)):
            made.create_topic(topic, queues=2)
            with Producer(made.nameserver, group="P") as producer:
                for number in range(count):
                    producer.send(Message(topic, b"%d" % number))
                    if number == count // 2:
                        commit(made.nameserver, group, topic, at_end=True)
        yield made


@pytest.fixture
def page(driver: webdriver.Chrome, shop: Cluster, tmp_path: Path) -> Iterator[Page]:
    daemon = console_daemon(tmp_path, shop.nameserver)
    daemon.start()
    try:
        wait_ready([daemon])
        yield Page(driver, f"http://{daemon.addr}")
        # Also a breach of the page's policy would be there. One page is opened that does not exist.
        severe = [line["message"] for line in driver.get_log("browser") if line["level"] == "SEVERE"]
        assert [text for text in severe if NO_PAGE not in text] == []
    finally:
        driver.get("about:blank")
        daemon.kill()


def commit(nameserver: str, group: str, topic: str, *, at_end: bool) -> None:
    with PullConsumer(nameserver, group=group) as consumer:
        for queue in consumer.message_queues(topic):
            consumer.commit_offset(queue, consumer.max_offset(queue) if at_end else 0)


def test_a_person_walks_through_the_console(page: Page, shop: Cluster) -> None:
    page.emulate()
    # A topic is created, and a message sent and found.
    page.open("/topics")
    page.unfold("Create a topic")
    page.fill("/topics", topic="orders", writeQueues="2")
    assert page.text(".notice.good") == "topic orders is created"
    page.until(lambda: "orders" in page.text("h1"), "the page of the topic")
    page.open("/messages")
    page.unfold("Send a message")
    page.fill(
        "/messages", topic="orders", keys="order-17", tag="new", body='{"id": 17, "item": "<b>tea</b>", "price": 3.2}'
    )
    assert '"item": "<b>tea</b>"' in page.text("pre")
    page.picture("message")
    for query in ("by=key&topic=orders&key=order-17", "by=time&topic=orders"):
        page.open(f"/messages?{query}")
        page.click("#live-messages tbody a")
        assert "order-17" in page.text("main")
    # Lag grows and shrinks in a page that is not loaded again.
    commit(shop.nameserver, "shop", "orders", at_end=False)
    page.open("/groups/shop")
    assert page.text("#live-facts dd") == "1"
    page.driver.execute_script("window.isTheSamePage = true")
    with Producer(shop.nameserver, group="P") as producer:
        for number in range(39):
            producer.send(Message("orders", json.dumps({"id": number, "item": "tea"}).encode(), keys=f"order-{number}"))
    page.until(lambda: page.text("#live-facts dd") == "40", "the lag has grown")
    assert "No consumer is connected." in page.text(".why")
    commit(shop.nameserver, "shop", "orders", at_end=True)
    page.until(lambda: page.text("#live-facts dd") == "0", "the lag has shrunk")
    assert page.driver.execute_script("return window.isTheSamePage") is True
    # The group is reset: first a preview, then the change.
    page.unfold("Reset offsets")
    page.fill("/groups/shop/reset", where="begin")
    page.until(lambda: "/reset?" in page.driver.current_url, "the preview")
    assert page.text("dl.facts dd") == "40"
    page.picture("reset")
    page.fill("/groups/shop/reset")
    page.until(lambda: page.text("#live-facts dd") == "40", "the group reads all again")
    # A dead letter is sent again.
    shop.create_topic("failing", queues=1)
    trio.run(give_up, shop.nameserver, "given-up", "failing", b"no-such-item")

    def has_dead_letter() -> bool:
        page.open("/groups/given-up")
        return page.text("#live-facts div:nth-child(6) dd") == "1"

    page.until(has_dead_letter, "the group has a dead letter")
    page.open("/groups/given-up/dead")
    assert "ValueError: no no-such-item for me" in page.text("#live-letters")
    page.click("#live-letters input[type=checkbox]")
    page.fill("/groups/given-up/dead/resend")
    assert page.text(".notice.good") == "1 dead letter was sent again"
    assert page.text("#live-letters tbody td:nth-child(4)") == "1"
    # A topic is deleted only when its name is typed.
    page.open("/topics/failing")
    page.unfold("Delete this topic")
    page.fill("/topics/failing/delete", confirm="fail")
    assert "type failing to confirm" in page.text(".notice.bad")
    page.open("/topics/failing")
    page.unfold("Delete this topic")
    page.fill("/topics/failing/delete", confirm="failing")
    assert "are deleted" in page.text(".notice.good")
    check_all_pages(page, shop)


def check_all_pages(page: Page, shop: Cluster) -> None:
    """No page has a serious fault for those who cannot see, or is wider than a phone; each works by keyboard.

    Looking for such faults takes seconds a page: CI looks at some pages, and the nightly run at all.
    """
    paths = {
        "overview": "/", "broker": f"/brokers/{shop.brokers[0].address}", "topics": "/topics",
        "topic": "/topics/orders",
        "groups": "/groups", "one group": "/groups/shop", "dead letters": "/groups/given-up/dead",
        "messages": "/messages?by=time&topic=orders", "trace": "/trace?id=nothing", "waiting": "/waiting",
        "search": "/search?q=orders",
        "replicas": "/replicas", "accounts": "/accounts", "explain": "/accounts/explain", "doctor": "/doctor",
        "error": NO_PAGE,
    }  # fmt: skip
    faults, looked_at = [], set(share_of(paths, 4))
    for name, path in paths.items():
        page.open(path)
        if name in looked_at:
            faults += page.faults()
            page.emulate(dark=True)
            faults += page.faults("color-contrast")
        page.emulate(width=390, height=844)
        overflow = page.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert overflow <= 0, f"{path} is {overflow} pixels wider than a phone"
        beside = page.driver.execute_script(
            "return [...document.querySelectorAll('.grid td')].filter("
            "cell => cell.getBoundingClientRect().right > window.innerWidth).map(cell => cell.dataset.title)"
        )
        assert beside == [], f"{path} has cells beside a phone's screen"
        if name == "one group":
            page.picture("phone", height=1100)
            page.picture("group", height=1250)
        page.emulate()
    assert faults == []
    for name in ("overview", "topics", "groups", "doctor"):
        page.open(paths[name])
        page.picture(name)
    page.emulate(dark=True)
    page.open("/")
    page.picture("dark", height=1000)
    page.open("/")
    page.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    focused = page.driver.switch_to.active_element
    assert focused.text == "Skip to the content"
    focused.send_keys(Keys.ENTER)
    assert page.driver.current_url.endswith("#main")


def test_a_person_sees_a_master_switch(driver: webdriver.Chrome, tmp_path: Path) -> None:
    at = ControllerSet(tmp_path, brokers=2, options=QUICK, controllers=1)
    daemon = console_daemon(tmp_path, at.nameserver)
    try:
        at.start()
        first = trio.run(master_of, at)
        daemon.start()
        wait_ready([daemon])
        page = Page(driver, f"http://{daemon.addr}")
        page.open("/")
        page.until(lambda: f"master {first.addr}" in page.text("#live-sets"), "the first master")
        page.until(lambda: page.text("#live-sets").count("in sync") == 2, "the SyncStateSet")
        first.kill()
        (second,) = (broker for broker in at.brokers if broker is not first)
        page.until(lambda: f"master {second.addr}" in page.text("#live-sets"), "the other one is the master")
        page.open("/replicas")
        assert second.addr in page.text("#live-replicas")
        page.picture("replicas")
    finally:
        driver.get("about:blank")
        if daemon.runs:
            daemon.kill()
        at.end()


async def master_of(at: ControllerSet) -> Daemon:
    async with Admin(at.nameserver) as admin:
        return await at.until_in_sync(admin)
