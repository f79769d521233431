"""proxy.pages.reference: the generated pages are the ones in the tree, and they say the truth."""

from __future__ import annotations

from pathlib import Path

from proxy.config.loader import known_settings, load_settings
from proxy.config.settings import Settings
from proxy.pages.reference import CONFIGURATION_PAGE, SAMPLE_FILE, configuration_page, entries, sample_file

ROOT = Path(__file__).parents[4]


def test_the_configuration_page_is_current() -> None:
    assert (ROOT / CONFIGURATION_PAGE).read_text() == configuration_page(), "run `make docs`"


def test_the_sample_file_is_current() -> None:
    assert (ROOT / SAMPLE_FILE).read_text() == sample_file(), "run `make docs`"


def test_every_setting_is_in_the_reference_with_a_meaning() -> None:
    listed = [one for _, _, settings in entries() for one in settings]
    assert {one.path for one in listed} == {path for path, _ in known_settings()}
    assert all(one.meaning.endswith(".") for one in listed)


def test_the_sample_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "sample.toml").write_text(sample_file())
    assert load_settings(config=tmp_path / "sample.toml", environment={}) == Settings()


def test_the_sample_with_every_line_switched_on_sets_the_defaults(tmp_path: Path) -> None:
    names = {path[-1] for path, _ in known_settings()}
    lines = [
        line.removeprefix("# ") if line.removeprefix("# ").partition(" = ")[0] in names else line
        for line in sample_file().splitlines()
    ]
    (tmp_path / "all.toml").write_text("\n".join(lines))
    assert "\nmax_body_bytes = " in "\n".join(lines)
    assert load_settings(config=tmp_path / "all.toml", environment={}) == Settings()


def test_effective_settings_survive_being_written(tmp_path: Path) -> None:
    settings = load_settings(
        environment={},
        flags={"data": 'a"b\\c\nd', "limits": {"max_delay_s": "36h1ms"}, "topics": {"auto_create": "no"}},
    )
    (tmp_path / "effective.toml").write_text(sample_file(settings))
    assert load_settings(config=tmp_path / "effective.toml", environment={}) == settings
