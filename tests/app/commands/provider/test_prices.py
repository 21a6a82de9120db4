"""`amplifier provider prices` as a real process, with tables from a real server on loopback."""

import contextlib
import hashlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.price_files import PROVIDERS, shipped_list
from amplifier_app.sources.fetch.prices import fetch_prices
from amplifier_support.price_lists import ModelPrices, merge_lists
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.http_server import QuietHandler, serving
from tests.support.llm_server import Reply, ScriptedLLM, Usage

SHIPPED = {
    provider: {id: listed.prices for id, listed in merge_lists([shipped_list(module)]).items()}
    for module, provider in PROVIDERS.items()
}
HAIKU = "claude-haiku-4-5"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("AMPLIFIER_HOME", str(home))
    return home


@contextlib.contextmanager
def table_server(body: bytes, status: int = 200) -> Generator[tuple[str, list[str]]]:
    """Serve one table; yields its address and the paths of the requests."""
    requests: list[str] = []

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_head("application/json", len(body), status)
            self.wfile.write(body)

    with serving(Handler) as url:
        yield f"{url}/table.json", requests


def genai(changes: dict[str, dict[str, Any]] | None = None, without: tuple[str, ...] = ()) -> bytes:
    """The shipped prices as genai-prices publishes them, with other prices of some models."""

    def amounts(prices: ModelPrices) -> dict[str, Any]:
        raw: dict[str, Any] = {}
        for name, price in prices.usual.as_dict().items():
            key = f"{name}_mtok"
            long = prices.long.as_dict().get(name) if prices.long is not None else None
            tiers = [{"start": prices.above, "price": float(long or 0)}]
            raw[key] = {"base": float(price), "tiers": tiers} if long else float(price)
        return raw

    providers = [
        {
            "id": provider,
            "models": [
                {"id": id, "prices": {**amounts(prices), **(changes or {}).get(id, {})}}
                for id, prices in models.items()
                if id not in without
            ],
        }
        for provider, models in SHIPPED.items()
    ]
    return json.dumps([{"id": "other", "models": "anything"}, *providers]).encode()


def models_dev(changes: dict[str, dict[str, Any]] | None = None) -> bytes:
    """The shipped prices as models.dev publishes them: none of one-hour cache writes."""

    def cost(prices: ModelPrices) -> dict[str, Any]:
        raw: dict[str, Any] = {k: float(v) for k, v in prices.usual.as_dict().items()}
        raw.pop("cache_write_1h", None)
        if prices.long is not None:
            long = {k: float(v) for k, v in prices.long.as_dict().items()}
            long.pop("cache_write_1h", None)
            raw["tiers"] = [{**long, "tier": {"type": "context", "size": prices.above}}]
            raw["context_over_200k"] = long
        return raw

    data = {
        provider: {
            "id": provider,
            "models": {
                id: {"id": id, "cost": {**cost(prices), **(changes or {}).get(id, {})}}
                for id, prices in models.items()
            },
        }
        for provider, models in SHIPPED.items()
    }
    return json.dumps({"other": {"models": []}, **data}).encode()


def update(url: str, *options: str, **variables: str | None) -> Finished:
    env: dict[str, str | None] = {"AMPLIFIER_PRICES_URL": url, **variables}
    return run_amplifier("provider", "prices", "--update", *options, env=env)


def listed(*options: str | Path) -> dict[str, Any]:
    done = succeed("provider", "prices", "--output", "json", *options)
    return json.loads(done.stdout)


def find(listing: dict[str, Any], model: str) -> dict[str, Any]:
    (row,) = [row for row in listing["models"] if row["model"] == model]
    return row


def test_the_shipped_prices_are_listed_with_date_source_and_hash(home: Path) -> None:
    listing = listed()
    assert find(listing, HAIKU)["prices"]["input"] == "1"
    files = {file["providers"][0]: file for file in listing["files"]}
    for module, provider in PROVIDERS.items():
        file = shipped_list(module).file
        about = {key: files[provider][key] for key in ("as_of", "source", "sha256")}
        assert about == file._asdict()
        assert files[provider]["path"] is None
    done = run_amplifier("provider", "prices")
    assert HAIKU in done.stdout
    for module in PROVIDERS:
        assert f"sha256 {shipped_list(module).file.sha256[:12]}" in done.stderr


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("genai-prices", genai({HAIKU: {"input_mtok": 4, "output_mtok": 20.5}})),
        ("models.dev", models_dev({HAIKU: {"input": 4, "output": 20.5}})),
    ],
)
def test_a_newer_table_is_shown_as_a_difference_and_then_used(
    home: Path, source: str, body: bytes
) -> None:
    with table_server(body) as (url, _):
        done = update(url, "--from", source, "--yes")
    assert done.code == 0, done.stderr
    change = f"anthropic {HAIKU}: input 1 → 4, output 5 → 20.5"
    (line,) = done.stdout.splitlines()
    # models.dev has no price of one-hour writes, and the old one belongs to the old price.
    assert line == (change if source == "genai-prices" else f"{change}, cache write 1h 2 → ?")

    data = (home / "prices.json").read_bytes()
    table = json.loads(data)
    assert (table["source"], table["url"]) == (source, url)
    assert table["source_sha256"] == hashlib.sha256(body).hexdigest()
    assert (home / "prices.json").stat().st_mode & 0o777 == 0o600
    listing = listed()
    assert find(listing, HAIKU)["prices"]["output"] == "20.5"
    assert find(listing, "claude-haiku-5-5")["long_prompt"]["above"] == 100_000
    (file,) = listing["files"]
    assert file["sha256"] == hashlib.sha256(data).hexdigest()
    assert (file["source"], file["path"]) == (source, str(home / "prices.json"))


def test_prices_that_the_source_does_not_have_are_kept(home: Path) -> None:
    with table_server(models_dev()) as (url, _):
        assert update(url, "--from", "models.dev", "--yes").stdout == ""
    assert find(listed(), HAIKU)["prices"]["cache_write_1h"] == "2"


def test_a_model_that_the_table_does_not_list_keeps_its_price(home: Path) -> None:
    with table_server(genai(without=(HAIKU,))) as (url, _):
        done = update(url, "--yes")
    assert done.stdout == f"anthropic, not in the table, price kept (1): {HAIKU}\n"
    assert find(listed(), HAIKU)["prices"]["input"] == "1"


def test_without_a_yes_nothing_is_written(home: Path) -> None:
    body = genai({HAIKU: {"input_mtok": 4}})
    with table_server(body) as (url, _):
        done = update(url)
        assert (done.code, "Pass --yes." in done.stderr) == (2, True)
        reported = update(url, "--output", "json")
    assert reported.code == 0
    (difference,) = json.loads(reported.stdout)["differences"]
    assert difference["before"]["prices"]["input"] == "1"
    assert difference["after"]["prices"]["input"] == "4"
    assert json.loads(reported.stdout)["path"] is None
    assert not (home / "prices.json").exists()


MALFORMED = {
    "another document": (b'{"error": "moved"}', "not a list of providers"),
    "a price of text": (genai({HAIKU: {"input_mtok": "free"}}), f"'{HAIKU}': expected a price"),
    "a negative price": (genai({HAIKU: {"input_mtok": -1}}), f"'{HAIKU}': expected a price"),
    "not a number": (genai({HAIKU: {"input_mtok": float("nan")}}), "NaN is not a price"),
    "an odd tier": (
        genai({HAIKU: {"input_mtok": {"base": 1, "tiers": [{"start": "x", "price": 2}]}}}),
        "expected a number of tokens",
    ),
    "deeply nested": (b"[" * 200_000, "not JSON"),
}


def test_a_malformed_table_is_refused_and_nothing_is_lost(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case, (body, message) in MALFORMED.items():
        with table_server(body) as (url, _):
            monkeypatch.setenv("AMPLIFIER_PRICES_URL", url)
            with pytest.raises(ConfigError) as refused:
                fetch_prices("genai-prices", "2026-11-29", SHIPPED)
        assert str(refused.value).startswith("the table from genai-prices is malformed"), case
        assert message in str(refused.value), case
    with table_server(genai({HAIKU: {"input_mtok": 4}})) as (url, _):
        assert update(url, "--yes").code == 0
    before = (home / "prices.json").read_bytes()
    lost = tuple([*SHIPPED["openai"]][: len(SHIPPED["openai"]) // 3])
    shrunken = genai(without=lost)
    lacks = f"lacks {len(lost)} of the {len(SHIPPED['openai'])} models of openai that have a price"
    for body, message in ((genai()[:-20], "not JSON: line 1"), (shrunken, lacks)):
        with table_server(body) as (url, _):
            done = update(url, "--yes")
        assert done.code == 78, message
        assert message in done.stderr
        assert "The prices in use are unchanged." in done.stderr
        assert (home / "prices.json").read_bytes() == before


def test_a_server_that_fails_changes_nothing(home: Path) -> None:
    with table_server(b"no", 503) as (url, _):
        done = update(url, "--yes")
    assert done.code == 78
    assert "the server returned 503" in done.stderr
    assert not (home / "prices.json").exists()


def test_fetching_can_be_disabled_and_needs_https(home: Path) -> None:
    with table_server(genai()) as (url, requests):
        offline = update(url, "--yes", AMPLIFIER_OFFLINE="1")
        assert requests == []
    assert (offline.code, "offline" in offline.stderr) == (78, True)
    plain = update("http://example.invalid/table.json", "--yes")
    assert (plain.code, "is not an https:// address" in plain.stderr) == (78, True)
    done = run_amplifier("provider", "prices", "--from", "models.dev")
    assert (done.code, "--from needs --update" in done.stderr) == (2, True)


def test_a_table_that_cannot_be_read_is_not_called_damaged(home: Path) -> None:
    (home / "prices.json").mkdir(parents=True)
    done = run_amplifier("provider", "prices")
    assert done.code == 78
    assert "cannot read the table of prices: " in done.stderr
    assert "damaged" not in done.stderr


def test_a_damaged_table_is_reported_and_can_be_fetched_again(home: Path) -> None:
    home.mkdir()
    (home / "prices.json").write_text("{")
    done = run_amplifier("provider", "prices")
    assert done.code == 78
    assert "the table of prices is damaged: it is not JSON" in done.stderr
    with table_server(genai()) as (url, _):
        assert update(url, "--yes").code == 0
    succeed("provider", "prices")


def plan_with(folder: Path, server: ScriptedLLM, **config: Any) -> Path:
    common = {"base_url": server.base_url, "model": HAIKU, "list_prices": True}
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-anthropic", "config": {**common, **config}}],
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


def run(plan: Path, *options: str) -> Finished:
    """Run a prompt with an address for tables that must not be used."""
    env = {"ANTHROPIC_API_KEY": "k", "AMPLIFIER_PRICES_URL": "http://127.0.0.1:9/table.json"}
    return run_amplifier("run", "-f", plan, "--session", "s", "go", *options, env=env)


def test_a_session_names_the_price_files_of_its_cost(home: Path, tmp_path: Path) -> None:
    reply = Reply("Hello.", usage=Usage(1_000_000, 0))
    with ScriptedLLM.running([reply, reply]) as server:
        plan = plan_with(tmp_path, server)
        first = json.loads(run(plan, "--output", "json").stdout)
        with table_server(genai({HAIKU: {"input_mtok": 4}})) as (url, requests):
            assert update(url, "--yes").code == 0
            second = json.loads(run(plan, "--output", "json").stdout)
            assert len(requests) == 1
    assert (float(first["cost"]["usd"]), float(second["cost"]["usd"])) == (1, 4)

    done = run_amplifier("session", "cost", "s", "--output", "json")
    shipped, fetched = json.loads(done.stdout)["prices"]
    assert shipped == {"provider": "anthropic", **shipped_list("provider-anthropic").file._asdict()}
    assert fetched["sha256"] == hashlib.sha256((home / "prices.json").read_bytes()).hexdigest()
    text = run_amplifier("session", "cost", "s")
    for file in (shipped, fetched):
        assert f"anthropic: prices of {file['as_of']}, sha256 {file['sha256'][:12]}" in text.stderr
    metadata = json.loads((home / "sessions" / "s" / "metadata.json").read_text())
    assert metadata["prices"] == [shipped, fetched]


def test_prices_of_the_plan_override_the_table(home: Path, tmp_path: Path) -> None:
    with table_server(genai({HAIKU: {"input_mtok": 4}})) as (url, _):
        assert update(url, "--yes").code == 0
    with ScriptedLLM.running([Reply("Hello.", usage=Usage(1_000_000, 0))]) as server:
        plan = plan_with(tmp_path, server, prices={"input": 7, "output": 9})
        done = run(plan, "--output", "json")
    assert float(json.loads(done.stdout)["cost"]["usd"]) == 7
    metadata = json.loads((home / "sessions" / "s" / "metadata.json").read_text())
    assert metadata["prices"] == [{"provider": "anthropic", "source": "plan"}]
    assert listed("-f", plan)["plan"] == {"provider-anthropic": {"input": 7, "output": 9}}


def test_a_run_with_a_damaged_table_uses_the_shipped_prices(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "prices.json").write_text('{"format": "amplifier-prices", "version": 1')
    with ScriptedLLM.running([Reply("Hello.", usage=Usage(1_000_000, 0))]) as server:
        done = run(plan_with(tmp_path, server), "--output", "json")
    assert float(json.loads(done.stdout)["cost"]["usd"]) == 1
    assert "ignoring the prices in" in done.stderr


def test_the_lock_names_the_price_list(home: Path, tmp_path: Path) -> None:
    with ScriptedLLM.running([]) as server:
        plan = plan_with(tmp_path, server)
        succeed("plan", "lock", "-f", plan)
        lock = json.loads((tmp_path / "plan.lock.json").read_text())
        file = shipped_list("provider-anthropic").file._asdict()
        assert lock["prices"] == {"provider-anthropic": file}
        with table_server(genai({HAIKU: {"input_mtok": 4}})) as (url, _):
            assert update(url, "--yes").code == 0
        # Other prices do not change what runs.
        checked = succeed("plan", "lock", "-f", plan, "--check")
        assert f"provider-anthropic: prices {file['as_of']}" in checked.stdout
        succeed("plan", "lock", "-f", plan)
        lock = json.loads((tmp_path / "plan.lock.json").read_text())
        assert lock["prices"]["provider-anthropic"]["source"] == "genai-prices"
