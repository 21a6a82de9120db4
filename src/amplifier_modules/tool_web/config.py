"""Settings of tool-web."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.published import Published, another_name_of, ignored

MODULE_ID = "tool-web"


class SearchEndpoint(ModuleConfig):
    """A search service that answers with JSON.

    In `params`, `headers` and `body` stand `{query}`, `{count}` and `{key}` for what is searched,
    how many results are wanted, and the key. The defaults are those of a SearXNG server.

    Attributes:
        url: Address of the service; it may be one of this machine or of a private network.
        params: Parameters of the address.
        headers: Headers of the request.
        body: JSON body; with one the request is a POST.
        key_variable: Environment variable that holds the key.
        results: Where the list of results is in the answer, with dots between the keys.
        title: Where a result's title is in it.
        link: Where a result's address is in it.
        snippet: Where a result's text is in it.
    """

    url: str
    params: dict[str, str] = Field(default_factory=lambda: {"q": "{query}", "format": "json"})
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    body: dict[str, Any] | None = None
    key_variable: str | None = None
    results: str = "results"
    title: str = "title"
    link: str = "url"
    snippet: str = "content"

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not value.lower().startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value


class WebConfig(ModuleConfig):
    """Settings of tool-web.

    Attributes:
        allow_hosts: Hosts that may be asked although their addresses are not public: names
            (`wiki.corp.example`, `*.corp.example`), addresses (`10.1.2.3`, `[fd00::1]`) or networks
            (`10.1.0.0/16`), names and addresses also with `:port`.
        allow_private: Let every address of this machine and of private networks be asked.
            Link-local ones, where clouds give out credentials, still have to be named.
        use_proxy: Ask through the proxy that the environment names. It then resolves names anew,
            so that the address which was checked need not be the one it connects to.
        allowed_domains: The only domains that pages are fetched from, with their subdomains; empty
            for all.
        blocked_domains: Texts that must not be in the host of a page, such as `ads.example`.
        timeout: Seconds a page may take, redirects included.
        max_redirects: Most redirects to follow.
        max_bytes: Bytes of a page to read, counted after decompression.
        max_chars: Characters of a page that one call gives the model when it asks for no number.
        cache: Keep pages in files of the user's cache folder, in memory, or not.
        cache_seconds: How long a kept page is given without asking the server again.
        user_agent: What the requests call themselves.
        search: The service that `web_search` asks; without one that tool is not mounted.
        max_results: Most results of a search.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "max_size": another_name_of("max_bytes"),
        "default_limit": another_name_of("max_chars"),
        **dict.fromkeys(("search_engine", "api_key"), ignored("set 'search'")),
        "extract_text": ignored("pages are always given as text"),
        "working_dir": ignored("pages are not saved to files"),
    }

    allow_hosts: list[str] = Field(default_factory=list[str])
    allow_private: bool = False
    use_proxy: bool = False
    allowed_domains: list[str] = Field(default_factory=list[str])
    blocked_domains: list[str] = Field(default_factory=list[str])
    timeout: float = Field(default=30, gt=0)
    max_redirects: int = Field(default=10, ge=0)
    max_bytes: int = Field(default=10_000_000, ge=1, le=100_000_000)
    max_chars: int = Field(default=20_000, ge=100)
    cache: Literal["disk", "memory", "off"] = "disk"
    cache_seconds: float = Field(default=900, ge=0)
    user_agent: str = Field(default="amplifier", min_length=1, pattern=r"^[\x20-\x7e]*$")
    search: SearchEndpoint | None = None
    max_results: int = Field(default=10, ge=1, le=50)

    @field_validator("allow_hosts")
    @classmethod
    def _are_hosts(cls, value: list[str]) -> list[str]:
        from amplifier_modules.tool_web.addresses import read_rule

        for entry in value:
            read_rule(entry)
        return value
