"""What source texts mean, and which are refused."""

from pathlib import Path

import pytest

from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    GitSource,
    PackageSource,
    SourceSyntaxError,
    parse_source,
)

FOLDER = Path("/plans/mine")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("./my-tool", "/plans/mine/my-tool"),
        ("./a/../b", "/plans/mine/b"),
        ("../shared", "/plans/shared"),
        (".", "/plans/mine"),
        ("/abs/tool", "/abs/tool"),
        ("./with space", "/plans/mine/with space"),
        ("./tool.py", "/plans/mine/tool.py"),
        ("file:///abs/tool", "/abs/tool"),
        ("file://localhost/abs/my%20tool", "/abs/my tool"),
        ("~/x", str(Path("~/x").expanduser())),
    ],
)
def test_folders(text: str, path: str) -> None:
    assert parse_source(text, FOLDER) == FolderSource(Path(path))


@pytest.mark.parametrize(
    ("text", "url", "ref", "subdirectory"),
    [
        ("git+https://host/org/repo", "https://host/org/repo", None, ""),
        ("git+https://host/org/repo.git@v1.2", "https://host/org/repo.git", "v1.2", ""),
        ("git+https://host/r@feature/x", "https://host/r", "feature/x", ""),
        ("git+https://host:8443/r@main#subdirectory=a/b", "https://host:8443/r", "main", "a/b"),
        ("git+https://u:p@host/r@main", "https://u:p@host/r", "main", ""),
        ("git+ssh://git@host/org/repo@v1", "ssh://git@host/org/repo", "v1", ""),
        ("git+ssh://git@host:22/org/repo", "ssh://git@host:22/org/repo", None, ""),
        ("git+file:///srv/repo@v1#egg=x&subdirectory=y", "file:///srv/repo", "v1", "y"),
        ("git+https://host/r#subdirectory=./a/", "https://host/r", None, "a"),
        ("git+https://host/r#subdirectory=.", "https://host/r", None, ""),
        ("git+https://[::1]/r", "https://[::1]/r", None, ""),
    ],
)
def test_git(text: str, url: str, ref: str | None, subdirectory: str) -> None:
    assert parse_source(text, FOLDER) == GitSource(text, url, ref, subdirectory)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("my-package", PackageSource("my-package")),
        ("amplifier_module_tool_x", PackageSource("amplifier_module_tool_x")),
        ("a.b", PackageSource("a.b")),
        ("x", PackageSource("x")),
        ("my-mod>=1.2,<2", PackageSource("my-mod", (), "<2,>=1.2")),
        ("my-mod >= 1.2", PackageSource("my-mod", (), ">=1.2")),
        ("my_mod[b,a]==1.*", PackageSource("my_mod", ("a", "b"), "==1.*")),
        ("my-mod[x]", PackageSource("my-mod", ("x",), "")),
        ("my-mod~=1.0", PackageSource("my-mod", (), "~=1.0")),
    ],
)
def test_packages(text: str, source: PackageSource) -> None:
    assert parse_source(text, FOLDER) == source
    assert parse_source(source.text, FOLDER) == source


HASH = "ab" * 32


@pytest.mark.parametrize(
    ("text", "location", "sha256", "subdirectory"),
    [
        ("./x-1.0-py3-none-any.whl", "/plans/mine/x-1.0-py3-none-any.whl", "", ""),
        ("/srv/x.tar.gz", "/srv/x.tar.gz", "", ""),
        ("../X.ZIP", "/plans/X.ZIP", "", ""),
        ("file:///srv/a%20b.tgz", "/srv/a b.tgz", "", ""),
        (f"./x.zip#sha256={HASH.upper()}", "/plans/mine/x.zip", HASH, ""),
        ("./x.txz#subdirectory=a/b", "/plans/mine/x.txz", "", "a/b"),
        (
            f"https://host/x.tar.bz2#sha256={HASH}&subdirectory=a",
            "https://host/x.tar.bz2",
            HASH,
            "a",
        ),
        ("https://u:p@host:8443/a/x.whl?token=1", "https://u:p@host:8443/a/x.whl?token=1", "", ""),
        ("http://127.0.0.1:80/x.zip", "http://127.0.0.1:80/x.zip", "", ""),
        ("http://[::1]/x.zip", "http://[::1]/x.zip", "", ""),
    ],
)
def test_archives(text: str, location: str, sha256: str, subdirectory: str) -> None:
    source = parse_source(text, FOLDER)
    assert isinstance(source, ArchiveSource)
    assert (source.location, source.sha256, source.subdirectory) == (location, sha256, subdirectory)
    assert source.is_local is location.startswith("/")
    assert parse_source(source.text, Path("/elsewhere")) == source


def test_no_password_is_shown() -> None:
    for text in (
        "git+https://u:secret@host/r@v1",
        "git+https://secret@host/r@v1",
        "https://u:secret@host/x.zip?key=secret&a=secret",
    ):
        source = parse_source(text, FOLDER)
        assert isinstance(source, (GitSource, ArchiveSource))
        assert "secret" not in source.shown


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("my/tool", "write './my/tool'"),
        ("git@host.example:org/repo.git", "write 'git+ssh://git@host.example/org/repo.git'"),
        ("https://host/org/repo", "write 'git+https://host/org/repo'"),
        ("https://u:secret@host/repo", "write 'git+https://u:***@host/repo'"),
        ("ftp://host/x.zip", "use file://, https://, git+https://"),
        ("x.tar.gz", "for an archive next to the plan, write './x.tar.gz'"),
        ("http://example.com/x.zip", "use https://"),
        ("package @ https://host/x.whl", "write only the part after the '@'"),
        ("package>=1.0; python_version>'3'", "remove the ';' and what follows"),
        ("package>=", "write 'package>=1.2,<2'"),
        ("https://host/x.zip#sha256=12", "64 hexadecimal digits"),
        ("git+http://host/r", "use git+https://"),
        ("git+git@host:r", "use git+https://"),
    ],
)
def test_a_near_miss_gets_a_hint(text: str, hint: str) -> None:
    with pytest.raises(SourceSyntaxError) as raised:
        parse_source(text, FOLDER)
    assert hint in (raised.value.hint or "")
    assert "secret" not in str(raised.value)


HOSTILE = [
    "git+ext::sh -c 'touch /tmp/pwned'",
    "git+ext::sh%20-c%20id",
    "git+ext://x",
    "git+fd::17",
    "git+git://host/r",
    "git+http://host/r",
    "git+ftp://host/r",
    "git+GIT://host/r",
    "git+rsync://host/r",
    "git+transport::https://host/r",
    "git+-uhttps://host/r",
    "git+--upload-pack=/tmp/x",
    "git+",
    "git+https://",
    "git+https:///r",
    "git+https://host",
    "git+https://host/",
    "git+ssh://-oProxyCommand=id/r",
    "git+ssh://%2DoProxyCommand=id/r",
    "git+ssh://user@-oProxyCommand=id/r",
    "git+ssh://-oProxyCommand=id@host/r",
    "git+ssh://host/-oProxyCommand=id",
    "git+ssh://ho st/r",
    "git+ssh://host$(id)/r",
    "git+ssh://host;id/r",
    "git+ssh://host:22x/r",
    "git+https://host/r@--upload-pack=id",
    "git+https://host/r@-v",
    "git+https://host/r@%2Dv",
    "git+https://host/r@a..b",
    "git+https://host/r@a@{1}",
    "git+https://host/r@a:b",
    "git+https://host/r@a b",
    "git+https://host/r@a%20b",
    "git+https://host/r@a\nb",
    "git+https://host/r@a%0Ab",
    "git+https://host/r@x.lock",
    "git+https://host/r@",
    "git+https://host/r@$(id)",
    "git+https://host/r?upload=1",
    "git+https://host/r#subdirectory=../x",
    "git+https://host/r#subdirectory=a/../../x",
    "git+https://host/r#subdirectory=%2E%2E/x",
    "git+https://host/r#subdirectory=/etc",
    "git+https://host/r#subdirectory=a\\b",
    "git+https://host/r#subdirectory=-x",
    "git+https://host/r#subdirectory=.git/hooks",
    "git+https://host/r#run=1",
    "git+https://host/r%00x",
    "git+https://host/r%0Ax",
    "git+https://ho\x00st/r",
    "git+file://host/srv/r",
    "git+file:///-x",
    "git+file:////host/r",
    "git+\\\\host\\r",
    "file://host/path",
    "file:///x%00y",
    "http://host/x.zip",
    "http://169.254.169.254/x.zip",
    "http://127.0.0.1.evil.example/x.zip",
    "http://localhost@evil.example/x.zip",
    "https://-oX/x.zip",
    "https://ho st/x.zip",
    "https:///x.zip",
    "https://host/x.exe",
    "https://host/x.zip%0d%0aHost:evil",
    "https://host/x.zip%00",
    "https://host/x.zip#sha256=zz",
    "https://host/x.zip#subdirectory=../..",
    "https://host/x.zip#run=1",
    "./x.zip#subdirectory=../..",
    "./x.zip#subdirectory=/etc",
    "./x.tar.gz#sha1=ab",
    "file://host/x.zip",
    "file:///x.zip?y",
    "ftp://host/x.zip",
    "data:application/zip;base64,x",
    "x @ git+https://host/r",
    "x @ file:///srv/x.whl",
    "x[a] @ ext::sh",
    "x>=1 --index-url=https://evil.example",
    "x>=1\n--index-url=https://evil.example",
    "--index-url=https://evil.example x",
    "-r/etc/passwd",
    "x>=1; os_name=='posix'",
    "x==$(id)",
    "file:relative",
    "file:///x?y",
    "-x",
    "--help",
    "./x\0y",
    "./x\ny",
    " ./x",
    "$(id)",
    "",
]


def test_hostile_sources_are_refused_before_anything_runs() -> None:
    for text in HOSTILE:
        with pytest.raises(SourceSyntaxError):
            pytest.fail(f"{text!r} is read as {parse_source(text, FOLDER)}")
