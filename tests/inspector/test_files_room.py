"""Files of the server's machine in the browser: looking around, seeing, bringing in, taking out."""

import base64
from pathlib import Path

from sandboxagent.client.sync import SandboxAgent
from tests.inspector.browsing import Tab
from tests.support.running import Server

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def place(server: Server, name: str) -> Path:
    folder = Path(server.work) / name
    folder.mkdir(exist_ok=True)
    return folder


def test_a_directory_is_looked_through_and_a_file_is_seen(tab: Tab, server: Server) -> None:
    folder = place(server, "looking")
    (folder / "inner").mkdir(exist_ok=True)
    (folder / "inner" / "hello.py").write_text('print("hello")\n')
    (folder / "inner" / "<b>bold.txt").write_text("<script>alert(1)</script>")
    (folder / "inner" / "raw.bin").write_bytes(bytes(range(256)))
    (folder / "inner" / "dot.png").write_bytes(base64.b64decode(PIXEL))
    tab.open(f"files?path={folder}")
    tab.click("Directory inner", exact=False)
    tab.click("File hello.py 15 B", exact=False)
    tab.sees('print("hello")')
    tab.click("File <b>bold.txt 25 B", exact=False)
    tab.sees("<script>alert(1)</script>")
    tab.click("File raw.bin 256 B", exact=False)
    tab.sees("This file is not text")
    tab.click("File dot.png", exact=False)
    tab.until("document.querySelector('img[alt=\"dot.png\"]')?.naturalWidth === 1")
    tab.click("looking")
    tab.sees("inner")


def test_files_are_uploaded_and_folders_made_and_deleted(tab: Tab, server: Server, tmp_path: Path) -> None:
    folder = place(server, "bringing")
    (tmp_path / "given.txt").write_text("brought in")
    tab.open(f"files?path={folder}")
    tab.sees("This directory is empty")
    tab.upload("input[type=file]", tmp_path / "given.txt")
    tab.sees("Uploaded given.txt")
    assert (folder / "given.txt").read_text() == "brought in"

    tab.click("New folder")
    tab.fill("Name", "a/b")
    tab.sees("A name has no slash.")
    tab.fill("Name", "fresh")
    tab.click("Make it")
    tab.sees("fresh")
    assert (folder / "fresh").is_dir()

    tab.click("Delete given.txt")
    tab.sees("Delete given.txt?")
    tab.is_accessible()
    tab.click("Delete")
    tab.does_not_see("given.txt")
    assert not (folder / "given.txt").exists()


def test_a_file_is_downloaded_as_it_is(tab: Tab, server: Server) -> None:
    folder = place(server, "taking")
    (folder / "taken.bin").write_bytes(b"\x00\x01exactly this")
    tab.open(f"files?path={folder}")
    # What the browser would save, seen on its way there.
    tab.run("""(() => {
      const make = URL.createObjectURL;
      URL.createObjectURL = (blob) => { window.saved = blob.arrayBuffer(); return make.call(URL, blob); };
      HTMLAnchorElement.prototype.click = function () { window.name = this.download; };
    })()""")
    tab.click("Download taken.bin")
    tab.until("window.name === 'taken.bin'")

    assert tab.run("window.saved.then((bytes) => [...new Uint8Array(bytes)])") == list(b"\x00\x01exactly this")


def test_a_directory_that_cannot_be_read_says_why(tab: Tab) -> None:
    tab.open("files?path=/does/not/exist")
    tab.sees("Could not open the directory")
    tab.sees("/does/not/exist")
    tab.has_accessible_room(colors=False)


def test_a_session_has_its_files_in_a_tab(tab: Tab, server: Server, client: SandboxAgent) -> None:
    folder = place(server, "of-a-session")
    (folder / "made.txt").write_text("by an agent")
    session = client.sessions.create("mock", cwd=str(folder))
    tab.open(f"sessions/{session.id}?tab=files")
    tab.sees("made.txt")
    (folder / "later.txt").write_text("later")
    tab.click("Refresh")
    tab.sees("later.txt")
