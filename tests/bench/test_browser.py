"""The page as a phone shows it: laid out and painted by headless Chromium, where there is one."""

import html
import json
import re
import shutil
import subprocess

import pytest

from roller_bench.losses import explain
from roller_bench.page import page
from roller_bench.pictures import colours, pictures

from .test_comparison import report  # noqa: F401 - the fixture

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs chromium")]
#: CSS pixels of a phone, and high enough for the whole page.
WIDTH, HEIGHT = 412, 4000
#: What the browser is asked once it has laid the page out; the answer becomes the page.
ASK = """<script>
const boxes = {};
for (const figure of document.querySelectorAll("figure")) {
  const outer = figure.getBoundingClientRect(), shapes = [];
  for (const e of figure.querySelectorAll("path, use")) {  // texts are shapes too
    if (e.closest("defs")) continue;
    const b = e.getBoundingClientRect();
    shapes.push([b.left, b.top, b.right, b.bottom]);
  }
  boxes[figure.id] = {box: [outer.left, outer.top, outer.right, outer.bottom], shapes};
}
const told = {boxes, width: document.documentElement.scrollWidth, inner: window.innerWidth,
              fetched: performance.getEntriesByType("resource").map(r => r.name)};
document.body.textContent = "TOLD" + JSON.stringify(told) + "TOLD";
</script>"""


def chromium(folder, *words):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
               f"--window-size={WIDTH},{HEIGHT}", *words]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def asked(text, tmp_path):
    """What the browser says of a page."""
    asking = tmp_path / "asking.html"
    asking.write_text(text.replace("</body>", f"{ASK}</body>"))
    answer = re.search("TOLD(.*)TOLD", chromium(tmp_path, "--dump-dom", asking.as_uri()), re.S)
    return json.loads(html.unescape(answer[1]))


@pytest.fixture
def written(report):  # noqa: F811 - the fixture
    return report, page(report, pictures(report), explain(report), "roller-tvm compare --suite mine.csv")


def test_it_fits_a_phone_and_its_pictures_are_inside(written, tmp_path):
    told = asked(written[1], tmp_path)
    assert told["width"] <= told["inner"] and told["fetched"] == []  # nothing to scroll sideways, no network
    assert set(told["boxes"]) == {"tuning_against_speed", "speed_over_time"}
    for name, figure in told["boxes"].items():
        left, top, right, bottom = figure["box"]
        assert right - left > 0.9 * WIDTH - 40 and bottom - top > 100, name
        assert len(figure["shapes"]) > 5, name
        for a, b, c, d in figure["shapes"]:
            assert left - 1 <= a <= c <= right + 1 and top - 1 <= b <= d <= bottom + 1, (name, figure["box"])


def test_every_tuner_is_painted(written, tmp_path):
    image = pytest.importorskip("PIL.Image")
    report, text = written  # noqa: F811
    shown, picture = tmp_path / "page.html", tmp_path / "page.png"
    shown.write_text(text)
    chromium(tmp_path, f"--screenshot={picture}", shown.as_uri())
    with image.open(picture) as opened:
        painted = {colour: count for count, colour in opened.convert("RGB").getcolors(1 << 24)}
    for label, colour in colours(report).items():
        rgb = tuple(int(colour[n : n + 2], 16) for n in (1, 3, 5))
        assert painted.get(rgb, 0) > 50, label
