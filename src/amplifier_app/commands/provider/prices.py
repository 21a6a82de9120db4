"""`amplifier provider prices`: the prices in use, and a newer table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.price_files import PROVIDERS, describe_prices, price_lists, shipped_lists
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.answers import YesOption, confirm
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import option
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_app.sources.fetch.prices import (
    Change,
    NewTable,
    SourceName,
    fetch_prices,
    make_table,
    write_prices,
)
from amplifier_support.clock import utc_now
from amplifier_support.fields import to_mapping
from amplifier_support.price_lists import (
    ModelPrices,
    PriceFile,
    PriceList,
    Prices,
    merge_lists,
    parse_fetched,
)

COLUMNS = (
    Column("PROVIDER", drop=2),
    Column("MODEL", "middle", least=20),
    Column("INPUT", right=True),
    Column("OUTPUT", right=True),
    Column("CACHE READ", right=True, drop=3),
    Column("CACHE WRITE", right=True, drop=4),
    Column("1 H WRITE", right=True, drop=5),
    Column("AS OF", drop=1),
)


@takes_plan_options("profile", "plan")
def prices(
    *,
    request: Request,
    update: Annotated[
        bool, option("--update", "Fetch a newer table and show how it differs.")
    ] = False,
    source: Annotated[
        SourceName | None,
        option("--from", "Where to fetch the table from. [default: genai-prices]"),
    ] = None,
    yes: YesOption = False,
    output: OutputOption = "text",
) -> None:
    """List the prices in use, in US dollars per million tokens, with their date and source.

    \b
      amplifier provider prices
      amplifier provider prices --update
      amplifier provider prices --update --from models.dev --yes

    The prices of the plan (`prices` of a provider) count first, then the newer of the list that
    ships with the provider and the table you have fetched. A table is fetched only by --update; a
    malformed or much shorter one is refused. With --output json, --update writes only with --yes.
    """
    if update:
        _update(source or "genai-prices", yes, output)
        return
    if source is not None or yes:
        raise UsageError(f"{'--from' if source else '--yes'} needs --update")
    _list(_plan_prices(request), output)


def _plan_prices(request: Request) -> dict[str, dict[str, Any]]:
    """The prices that the plan sets, by provider."""
    plan_prices: dict[str, dict[str, Any]] = {}
    for entry in chosen_plan(request).mount_plan()["providers"]:
        if own := to_mapping(to_mapping(entry.get("config")).get("prices")):
            plan_prices[entry.get("instance_id") or entry["module"]] = dict(own)
    return plan_prices


# -- listing -----------------------------------------------------------------------------


def _list(own: Mapping[str, Mapping[str, Any]], output: str) -> None:
    lists = price_lists()
    files = _files(lists)
    models = [
        (PROVIDERS[module], model, listed)
        for module, known in lists.items()
        for model, listed in merge_lists(known).items()
    ]
    if output == "json":
        facts = [
            {
                "provider": provider,
                "model": model,
                "as_of": priced.file.as_of,
                **priced.prices.as_dict(),
            }
            for provider, model, priced in models
        ]
        print(json_text({"plan": own, "files": files, "models": facts}))
        return
    rows = [_row(name, "every model", own[name], "plan") for name in own]
    for provider, model, listed in models:
        entry, date = listed.prices, listed.file.as_of
        rows.append(_row(provider, model, entry.usual.as_dict(), date))
        if entry.long is not None:
            above = f"{model} above {describe.tokens(entry.above)} tokens"
            rows.append(_row(provider, above, entry.long.as_dict(), date))
    print_table(COLUMNS, rows)
    for file in files:
        about = {**file, "provider": ", ".join(file["providers"])}
        to_stderr(f"amplifier: {describe_prices(about)}")


def _row(provider: str, model: str, prices: Mapping[str, Any], date: str) -> list[str]:
    amounts = [str(prices.get(name, "")) for name in Prices._fields]
    return [one_line(provider, 60), one_line(model, 100), *amounts, date]


def _files(lists: Mapping[str, Sequence[PriceList]]) -> list[dict[str, Any]]:
    """The files that some price in use comes from."""
    files: dict[PriceFile, list[str]] = {}
    for module, known in lists.items():
        for file in dict.fromkeys(listed.file for listed in merge_lists(known).values()):
            files.setdefault(file, []).append(PROVIDERS[module])
    shipped = {known.file for (known,) in shipped_lists().values()}
    return [
        {
            "providers": providers,
            **file._asdict(),
            "path": None if file in shipped else str(paths.prices_file()),
        }
        for file, providers in files.items()
    ]


# -- updating ----------------------------------------------------------------------------


def _update(source: SourceName, yes: bool, output: str) -> None:
    today = utc_now().date().isoformat()
    try:
        in_use = price_lists()
    except ConfigError as error:
        to_stderr(f"amplifier: {error}; comparing with the prices that ship with Amplifier")
        in_use = shipped_lists()
    known = {PROVIDERS[module]: list(merge_lists(lists)) for module, lists in in_use.items()}
    fetched = fetch_prices(source, today, known)
    table = make_table(source, today, fetched, in_use)
    if output == "json":
        path = str(write_prices(table.data)) if yes else None
        print(json_text({**_describe_table(table), "path": path, "url": fetched.url}))
        return
    for line in _lines(table.changes):
        print(one_line(line, 10_000))
    has_news = any(change.after is not None for change in table.changes)
    if has_news and not confirm(f"Use these prices from {source}?", yes):
        to_stderr("amplifier: the prices in use are unchanged")
        return
    path = write_prices(table.data)
    file = next(iter(parse_fetched(table.data).values())).file
    to_stderr(f"amplifier: wrote {path} ({source}, {today}, sha256 {file.sha256[:12]})")


def _describe_table(table: NewTable) -> dict[str, Any]:
    file = next(iter(parse_fetched(table.data).values())).file
    rows = [
        {
            "provider": change.provider,
            "model": change.model,
            "before": change.before and change.before.as_dict(),
            "after": change.after and change.after.as_dict(),
        }
        for change in table.changes
    ]
    return {**file._asdict(), "differences": rows}


def _lines(changes: Sequence[Change]) -> Iterator[str]:
    """The changed prices, a model each, then the models that come and those the table does not have."""
    for change in changes:
        if change.before is not None and change.after is not None:
            before, after = _amounts(change.before), _amounts(change.after)
            changed = [
                f"{key} {before.get(key, '?')} → {after.get(key, '?')}"
                for key in {**before, **after}
                if before.get(key) != after.get(key)
            ]
            yield f"{change.provider} {change.model}: {', '.join(changed)}"
    for provider in PROVIDERS.values():
        for title, key in (("new", "before"), ("not in the table, price kept", "after")):
            models = [
                change.model
                for change in changes
                if change.provider == provider and getattr(change, key) is None
            ]
            if models:
                yield f"{provider}, {title} ({len(models)}): {', '.join(models)}"


def _amounts(prices: ModelPrices) -> dict[str, str]:
    """The prices of a model by name; prices of long prompts are named with the length."""
    amounts = {key.replace("_", " "): value for key, value in prices.usual.as_dict().items()}
    for key, value in prices.long.as_dict().items() if prices.long is not None else ():
        amounts[f"{key.replace('_', ' ')} above {describe.tokens(prices.above)} tokens"] = value
    return amounts
