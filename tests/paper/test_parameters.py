from operator import attrgetter

from lesson.paper.parameters import parameters
from lesson.settings.presets import PRINTED
from lesson.settings.settings import Settings, section_of


def test_every_setting_exists_and_every_difference_is_listed() -> None:
    table = parameters()
    assert list(table.columns) == ["parameter", "setting", "paper", "printed", "released"]
    names = [name.strip() for row in table["setting"] for name in row.split(",")]
    assert all(attrgetter(name)(Settings()) is not None for name in names)
    different = table[table["printed"] != table["released"]]
    of_preset = {f"{section}.{name}" for section, values in PRINTED.items() for name in values}
    assert set(different["setting"]) == of_preset | {"strategy.ensure_first_tier"}


def test_values_are_for_people() -> None:
    table = parameters().set_index("setting")
    for name, paper, printed, released in [
        ("power_w", "1 W", "1 W", "0.1 W"),
        ("noise_dbm", "-94 dBm", "-94 dBm", "-100 dBm"),
        ("cycles_per_sample", "U(3, 5)·10^5", "U(3, 5)·10^5", "U(3, 5)·10^8"),
        ("cpu_hz", "U(0.8, 3) GHz", "U(0.8, 3) GHz", "U(0.8, 3) GHz"),
        ("bandwidth_hz", "30 kHz", "30 kHz", "30 kHz"),
        ("model_bits", "100 kbit", "100 kbit", "100 kbit"),
        ("lr_cap", "not mentioned", "none", "1"),
    ]:
        assert table.loc[f"{section_of(name)}.{name}"].tolist()[1:] == [paper, printed, released]


def test_the_printed_preset_is_the_papers_except_path_loss_and_local_training() -> None:
    table = parameters()
    others = [
        row.setting
        for row in table.itertuples()
        if row.paper != "not mentioned" and not row.paper.startswith(row.printed)
    ]
    assert set(others) == {
        "radio.path_loss_1km_db, radio.path_loss_slope_db",
        "training.local_steps, training.local_epochs",
    }
