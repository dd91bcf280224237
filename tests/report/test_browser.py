"""The page as a person meets it: opened in a real browser, without a screen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsepgd.report.entries import collect
from sparsepgd.report.page import write_page
from sparsepgd.report.pictures import clean_picture
from support.reported_runs import CLASSES, COUNT, MARKUP, make, make_ensemble, make_watermark

selenium = pytest.importorskip("selenium", reason="selenium is not installed; pip install sparsepgd[dev]")
BROWSER, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver; apt-get install chromium chromium-driver"
)
FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run", "window-size=1280,900"),
    *("disable-background-networking", "disable-component-update", "disable-sync", "disable-quic"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pages")
    one, two, mark = make(place / "one"), make_ensemble(place / "two"), make_watermark(place / "mark")
    runs = {"one": [one], "several": [one, two], "watermark": [mark]}
    return {name: write_page(collect(folders), place / f"{name}.html") for name, folders in runs.items()}


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Opens a page by name; afterwards nothing may have been said on the console."""

    def open_page(name: str) -> Any:
        browser.get(pages[name].as_uri())
        return browser

    yield open_page
    assert browser.get_log("browser") == []


def all_of(browser: Any, css: str) -> list[Any]:
    return list(browser.find_elements("css selector", css))


def one(browser: Any, css: str) -> Any:
    return browser.find_element("css selector", css)


def choose(browser: Any, select: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(one(browser, select)).select_by_value(value)


def enlarge_first(browser: Any) -> None:
    """With the keyboard."""
    shot = one(browser, ".shot")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", shot)
    shot.send_keys("\n")
    assert one(browser, "dialog").get_attribute("open") is not None


def test_names_stay_text_and_nothing_is_fetched(opened: Any) -> None:
    browser = opened("one")
    titles = {node.text for node in all_of(browser, ".card h3 span")}
    assert titles <= set(CLASSES)
    options = [node.get_attribute("textContent") for node in all_of(browser, "#by-class option")]
    assert MARKUP in options
    assert len(all_of(browser, "script")) == 2
    assert MARKUP in one(browser, "h1").text
    requests = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert [message for message in requests if '"url":"http' in message] == []


def test_an_injected_script_would_not_run(opened: Any) -> None:
    browser = opened("one")
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    assert browser.execute_script("return window.ran") is None
    (entry,) = browser.get_log("browser")  # the policy of the page says so
    assert "Content Security Policy" in entry["message"]


def test_the_gallery_shows_the_images_of_the_run(opened: Any, pages: dict[str, Path]) -> None:
    """Clean and changed pixels, laid over each other as the page does, are the adversarial image to the level."""
    browser = opened("one")
    entry = collect([pages["one"].parent / "one"])[0]
    assert len(all_of(browser, ".card")) == COUNT
    for number in (1, 2):
        seen = browser.execute_async_script(
            """
            const [number, done] = arguments;
            const pictures = [...document.querySelectorAll('.card')[number].querySelectorAll('.cell')[1]
              .querySelectorAll('img')];
            Promise.all(pictures.map((picture) => picture.decode())).then(() => {
              const canvas = document.createElement('canvas');
              canvas.width = canvas.height = 12;
              const context = canvas.getContext('2d');
              for (const picture of pictures) context.drawImage(picture, 0, 0);
              done([...context.getImageData(0, 0, 12, 12).data]);
            });
            """,
            number,
        )
        assert np.array_equal(np.array(seen).reshape(12, 12, 4)[:, :, :3], clean_picture(entry.x_adv[number]))
    row = entry.record.rows[1]
    says = [node.text for node in all_of(browser, ".card:nth-child(2) .says")]
    assert says[:2] == [entry.class_name(row.clean_prediction), entry.class_name(row.prediction)]
    assert f"{100 * row.confidence:.1f} %" in one(browser, ".card:nth-child(2)").text


def test_the_gallery_can_be_filtered(opened: Any, pages: dict[str, Path]) -> None:
    browser = opened("several")
    first, second = collect([pages["several"].parent / name for name in ("one", "two")])
    rows = [*first.record.rows, *second.record.rows]
    name = first.class_name(first.record.rows[1].label)
    choose(browser, "#by-class", name)
    assert {node.text for node in all_of(browser, ".card h3 span")} == {name}
    assert len(all_of(browser, ".shot")) == sum(first.class_name(row.label) == name for row in rows)
    choose(browser, "#by-class", "")
    attack = next(row.broken_by for row in second.record.rows if row.broken_by)
    choose(browser, "#by-attack", attack)
    assert len(all_of(browser, ".shot")) == sum(row.broken_by == attack for row in rows) > 0
    choose(browser, "#by-attack", "")
    choose(browser, "#by-run", "1")
    choose(browser, "#by-outcome", "withstood")
    left = sum(second.outcome(row) == "withstood" for row in second.record.rows)
    assert len(all_of(browser, ".card")) == left
    assert one(browser, "#found").text == f"{left} of {COUNT} images"


def test_runs_lie_side_by_side(opened: Any) -> None:
    browser = opened("several")
    heads = all_of(browser, ".head")
    assert len(heads) == 2
    assert heads[0].location["y"] == heads[1].location["y"]
    letters = [node.text for node in all_of(browser, ".card:first-child .badge")]
    assert letters == ["A", "B"]


@pytest.mark.parametrize("width", [320, 390, 760, 1280])
def test_the_widest_numbers_stay_in_their_cards(opened: Any, browser: Any, width: int) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened("several")
        room = """
          if (innerWidth > 1200) document.querySelector('.heads').style.gridTemplateColumns = 'repeat(3, 1fr)';
          const nodes = [...document.querySelectorAll('.figure, .facts dd')];
          for (const node of nodes) node.firstChild.data = '100.0';
          for (const node of document.querySelectorAll('.facts div:first-child dd'))
            node.firstChild.data = '10,000 of 10,000';
          return nodes.map((node) => {
            const words = document.createRange();
            words.selectNodeContents(node);
            return node.closest('.pair, .facts').getBoundingClientRect().right - words.getBoundingClientRect().right;
          });
        """  # with three runs a card is a third of the page
        assert min(browser.execute_script(room)) >= 0
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_image_is_enlarged_compared_and_left_with_the_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = opened("one")
    choose(browser, "#by-outcome", "fooled")
    enlarge_first(browser)
    clip = "return getComputedStyle(document.querySelector('#picture .changes')).clipPath"
    assert browser.execute_script(clip) == "inset(0px 0% 0px 0px)"  # all of the adversarial image
    slider = one(browser, "#slider")
    slider.send_keys(Keys.HOME)
    assert browser.execute_script(clip) == "inset(0px 100% 0px 0px)"  # the clean one
    slider.send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(clip) == "inset(0px 99% 0px 0px)"
    width = one(browser, "#picture").size["width"]
    one(browser, "#stage").send_keys("+")
    assert one(browser, "#picture").size["width"] == pytest.approx(2 * width, abs=2)
    one(browser, "#stage").send_keys("d")
    assert "grey" in one(browser, "#picture").get_attribute("class")
    title = one(browser, "#zoom-run").text
    one(browser, "#stage").send_keys("n")
    assert one(browser, "#zoom-run").text != title
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert one(browser, "dialog").get_attribute("open") is None
    assert browser.execute_script("return document.activeElement.className") == "shot"


def focused(browser: Any) -> str:
    return str(browser.execute_script("return document.activeElement.id"))


def test_rows_and_pictures_lead_to_each_other_with_the_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = opened("one")
    choose(browser, "#by-outcome", "wrong")
    one(browser, ".card h3 a").send_keys(Keys.ENTER)
    assert focused(browser) == "row-0"
    assert one(browser, "#row-0").is_displayed()
    one(browser, "#row-1 a").send_keys(Keys.ENTER)  # to an image that the filter hides
    assert focused(browser) == "shot-1"
    assert one(browser, "#by-outcome").get_attribute("value") == ""
    enlarge_first(browser)
    one(browser, "#zoom-row").send_keys(Keys.ENTER)
    assert one(browser, "dialog").get_attribute("open") is None
    assert focused(browser) == "row-0"


def test_an_address_with_an_image_opens_there(opened: Any, pages: dict[str, Path]) -> None:
    browser = opened("several")
    browser.get("about:blank")
    browser.get(f"{pages['several'].as_uri()}#row-{COUNT + 3}")  # of the second run
    row = one(browser, f"#row-{COUNT + 3}")
    assert row.is_displayed()
    assert [node.text for node in row.find_elements("css selector", ".badge, a")] == ["B", "#3"]


def test_pictures_say_which_member_broke_them(opened: Any, pages: dict[str, Path]) -> None:
    browser = opened("several")
    second = collect([pages["several"].parent / "two"])[0]
    for number, row in enumerate(second.record.rows[:6]):
        words = one(browser, f"#shot-{COUNT + number} .by").text
        assert words == (f"fooled by {row.broken_by}" if row.fooled else words)
        assert one(browser, f"#row-{COUNT + number}").get_attribute("textContent").count(row.broken_by or "") >= 1


def test_the_slider_follows_the_pointer(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser = opened("one")
    choose(browser, "#by-outcome", "fooled")
    enlarge_first(browser)
    picture = one(browser, "#picture")
    ActionChains(browser).move_to_element(picture).click_and_hold().perform()
    assert int(one(browser, "#slider").get_attribute("value")) == pytest.approx(50, abs=2)
    ActionChains(browser).move_by_offset(-picture.size["width"] // 4, 0).release().perform()
    assert int(one(browser, "#slider").get_attribute("value")) == pytest.approx(25, abs=2)


def test_watermarks_have_a_highlight_box(opened: Any, pages: dict[str, Path]) -> None:
    browser = opened("watermark")
    entry = collect([pages["watermark"].parent / "mark"])[0]
    number = int(entry.searched.nonzero()[0, 0])
    box = one(browser, f".card:nth-child({number + 1}) .cell:nth-child(2) rect")
    assert box.is_displayed()
    rows, columns = entry.changed[number].nonzero().T
    assert float(box.get_attribute("x")) <= int(columns.min())
    assert float(box.get_attribute("y")) <= int(rows.min())
    assert float(box.get_attribute("width")) >= min(int(columns.max() - columns.min()) + 1, 12)
    one(browser, "#boxes").click()
    assert not box.is_displayed()


def colours(browser: Any) -> tuple[int, int]:
    """The brightness of the ground, and of the letters of a figure."""
    script = """
      const number = (words) => words.match(/[\\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
      const letters = [...document.querySelectorAll('.plot text')].find((node) => node.style.fill.includes('--ink'));
      return [number(getComputedStyle(document.body).backgroundColor), number(getComputedStyle(letters).fill)];
    """
    return tuple(browser.execute_script(script))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_and_figures_follow_the_theme_and_the_button_changes_it(opened: Any, browser: Any, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        opened("one")
        ground, letters = colours(browser)
        assert (ground > 600 > 200 > letters) if scheme == "light" else (ground < 200 < 600 < letters)
        one(browser, "#theme").click()
        assert (colours(browser)[0] > 600) == (scheme == "dark")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("width", [320, 375])
@pytest.mark.parametrize("name", ["one", "several"])
def test_a_narrow_window_needs_no_sideways_scrolling(opened: Any, browser: Any, name: str, width: int) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened(name)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        enlarge_first(browser)
        assert one(browser, "dialog").size["width"] <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_print_is_light_and_without_controls(opened: Any, browser: Any) -> None:
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        opened("one")
        ground, letters = colours(browser)
        assert ground > 600 > 200 > letters
        assert not any(node.is_displayed() for node in all_of(browser, ".bar, .controls, #more"))
        assert all(node.is_displayed() for node in all_of(browser, ".chart, .card"))
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
