"""The page under test: `eyrie serve` is started, and a real browser looks at it (Debian's chromium,
driven by Playwright). What is here waits for what the page shows and never for a time."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from jobs import (
    EYRIE,
    PATIENCE_S,
    ROOT,
    SET_APART,
    Skipped,
    await_condition,
    check,
    children,
    workshop,
)

# Where screenshots for the documentation go; without it they are made and thrown away.
SCREENSHOTS = os.environ.get("EYRIE_TEST_SCREENSHOTS")
WIDE, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}


def tools():
    """Makes the browser and what drives it importable; skips the test where that is impossible."""
    made = subprocess.run([ROOT / "scripts/page-tools.sh"], capture_output=True, text=True)
    if made.returncode != 0:
        raise Skipped(made.stderr.strip().splitlines()[-1])
    packages = next(pathlib.Path(made.stdout.strip()).glob("lib/python*/site-packages"))
    sys.path.append(str(packages))


class Serving:
    """`eyrie serve ARGS` in the background; ended with its block."""

    count = 0

    def __init__(self, *args, listen="127.0.0.1:0"):
        Serving.count += 1
        self.said = workshop() / f"serve{Serving.count}"
        self.errors = self.said.with_suffix(".err")
        self.args = args
        self.start(listen)

    def start(self, listen):
        command = [str(EYRIE), "serve", "--listen", listen, *map(str, self.args)]
        with open(self.said, "wb") as out, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
            )
        SET_APART.add(self.process.pid)
        found = await_condition(self.address, "eyrie serve to listen")
        self.url, self.port = found[0], int(found[1])
        token = re.search(r"#token=(\w+)", self.said.read_text())
        self.token = token and token[1]

    def address(self):
        check(self.process.poll() is None, f"eyrie serve ended: {self.errors.read_text()}")
        # Both lines are written at once, as far as there are two.
        found = re.search(r"to look: +(http://[\d.]+:(\d+))/\n", self.said.read_text())
        return found and found.groups()

    def again(self):
        """Killed and started again at the same port."""
        self.end()
        self.start(f"127.0.0.1:{self.port}")

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def to_act(self, path="/"):
        """The address with the token."""
        return f"{self.url}{path}#token={self.token}"

    def get(self, path, **headers):
        """(status, body) of what is asked for without a browser."""
        return self.fetch(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path, body, **headers):
        data = json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.fetch(urllib.request.Request(self.url + path, data, headers, method="POST"))

    def fetch(self, request):
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()


@contextlib.contextmanager
def browser():
    """A browser; `open_page` opens a page in it. It ends with its block, before the job does: what
    a job leaves is looked for among the processes below this test."""
    tools()
    from playwright.sync_api import sync_playwright

    before = set(children(os.getpid()))
    with sync_playwright() as playwright:
        SET_APART.update(set(children(os.getpid())) - before)
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=[
                "--disable-breakpad",
                "--disable-gpu",
                "--font-render-hinting=none",
            ],
        )
        try:
            yield chromium
        finally:
            chromium.close()


def open_page(chromium, url, scheme="light", size=None):
    """A page of its own, with nothing remembered. What goes wrong in its scripts fails the test
    when it is closed by `closed`."""
    context = chromium.new_context(
        color_scheme=scheme, viewport=size or WIDE, device_scale_factor=1, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    page.wrong = []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda said: note(page, said))
    page.goto(url)
    return page


def note(page, said):
    # A server that is away, and requests that are refused, are part of tests.
    if said.type == "error" and "Failed to load resource" not in said.text:
        page.wrong.append(said.text)


def closed(page):
    """Closes a page in which nothing has gone wrong."""
    check(not page.wrong, f"the page says: {page.wrong}")
    page.context.close()


def shows(page, selector, text=None, patience_s=PATIENCE_S):
    """Waits until the page shows that; returns it."""
    found = page.locator(selector)
    if text is not None:
        found = found.filter(has_text=text)
    found.first.wait_for(state="visible", timeout=patience_s * 1000)
    return found.first


def awaits(page, condition):
    """Waits until this is so in the page. (What Playwright has for it must evaluate texts in the
    page, which the page's policy forbids.)"""
    await_condition(lambda: page.evaluate(condition), condition)


def rank(page, number):
    return page.locator(f'.rank[data-rank="{number}"]')


def node(page, number):
    return page.locator(f'.node[data-node="{number}"]')


def confirm(page, title, *sentences):
    """Waits for the dialog of an action, checks what it says, and confirms it."""
    dialog = shows(page, "dialog[open]")
    check(title in dialog.inner_text(), f"the dialog says {dialog.inner_text()!r}, not {title!r}")
    for sentence in sentences:
        check(sentence in dialog.inner_text(), f"no {sentence!r} in {dialog.inner_text()!r}")
    dialog.locator("button[value=yes]").click()


# The page writes them again, but leaves them hidden.
WITHOUT_PROGRAMS = """() => {
  for (const one of document.querySelectorAll(".program")) one.hidden = true;
}"""


def picture(page, name, full=False):
    """A screenshot, for the documentation if one is wanted."""
    folder = pathlib.Path(SCREENSHOTS) if SCREENSHOTS else workshop()
    # Where the programs of tests are is of no interest to readers.
    page.evaluate(WITHOUT_PROGRAMS)
    path = folder / f"page-{name}.png"
    page.screenshot(path=str(path), full_page=full)
    check(path.stat().st_size > 5000, f"{path.name} is empty")


def accessible(page):
    """Nothing keeps screen readers or keyboards from what is shown, by the rules of axe."""
    from axe_playwright_python.base import AXE_FILE_PATH

    page.evaluate(pathlib.Path(AXE_FILE_PATH).read_text())
    found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
    wrong = [
        f"{one['id']}: {one['help']}: {[n['html'][:150] for n in one['nodes'][:3]]}"
        for one in found["violations"]
    ]
    check(not wrong, "\n".join(["obstacles:", *wrong]))
