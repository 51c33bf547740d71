"""The tutorial, as a reader plays it: its files and commands in order, with a model behind a loopback endpoint."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.adapters.openai_server import OpenAIServer, Request, Turn
from tests.docs.walkthrough import make_script, play

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
CITIES = ["Lisbon", "Porto", "Madrid", "Seville", "Rome", "Milan"]

#: A booking takes two seconds, in which the reader kills the process. Here it waits as long as a file exists.
PAUSE = "time.sleep(2)"
HELD = 'while Path(f"hold {hotel}").exists():\n        time.sleep(0.02)'


@dataclass
class TravelModel(OpenAIServer):
    """Looks up the hotels of the cities in the prompt, books one in each, and says so."""

    def choose_turn(self, request: Request) -> Turn:
        prompt = request.body["messages"][1]["content"]
        cities, kind = [city for city in CITIES if city in prompt], "Palace" if "Palace" in prompt else "Central"
        price = 420 if kind == "Palace" else 140
        if request.turn == 0:
            return [(f"call_find_{number}", "find_hotels", {"city": city}) for number, city in enumerate(cities)]
        if request.turn == 1:
            hotels = [{"hotel": f"{city} {kind}", "price": price} for city in cities]
            return [(f"call_{number}", "book", hotel) for number, hotel in enumerate(hotels, 1)]
        return f"{len(cities)} nights are booked."


def kill_while_booking(hotel: str) -> str:
    """Commands that kill the last job in the middle of a booking."""
    return f"until grep -q 'booking {hotel}' output; do sleep 0.05; done\nkill -9 $!\nrm 'hold {hotel}'\n"


def make_tutorial() -> str:
    script = make_script(
        PAGE,
        replace={
            # It ends with exit code 1, because the run is not done.
            " --run-id palace\n": " --run-id palace || test $? = 1\n",
            "\nkill $!\n": "\nkill $!\nwait $!\n",
            "sleep 6\nkill -9 $!\n": kill_while_booking("Madrid Central"),
            "sleep 3\nkill -9 $!\n": kill_while_booking("Rome Central"),
        },
    )
    assert script.count(PAUSE) == 2, "in travel.py, and in travel.py with an approval"
    return script.replace(PAUSE, HELD)


async def test_every_command_of_the_tutorial_works_and_every_hotel_is_booked_once(tmp_path: Path) -> None:
    for hotel in ("Madrid Central", "Rome Central"):
        (tmp_path / f"hold {hotel}").touch()
    async with TravelModel(turns=()).serving() as model:
        shown = await play(make_tutorial(), tmp_path, {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none"})
    booked = (tmp_path / "bookings.txt").read_text().split("\n")[:-1]
    assert sorted(booked) == sorted([*(f"{city} Central" for city in CITIES), "Porto Palace"])
    assert len(model.finished()) == len(set(model.finished())) == 12, "a reply that was recorded is asked for once"
    assert re.search(r"spain.*interrupted", shown)
    assert "more than 200 euros" in shown
    assert re.search(r'"output":\s*"2 nights are booked. "', shown)
