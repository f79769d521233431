"""nginx and HAProxy in front of a gateway, as operators would write them, on ports that the system chose.

Where they are not installed Debian's packages are fetched and unpacked into the cache of tests; nothing is
installed, and nobody needs to be root but for lists of packages that are not there yet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from popgate.testing.frames import PREFACE, settings
from popgate.testing.made import FETCH_TRIES, Missing, locked, made_once, run_tool
from popgate.testing.papers import Papers
from popgate.testing.variables import variables
from tests.support.waiting import PATIENCE_S, wait_until

PACKAGES = {
    "nginx": ("nginx",),
    "haproxy": ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"),
}
"""With the libraries that a machine may not have."""


def command_of(name: str) -> tuple[str, Mapping[str, str]]:
    """A proxy's program, and the environment that it needs. Raises Missing."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))
    if found:
        return found, {}

    def unpack(folder: Path) -> None:
        download = ["apt-get", "-qq", "download", *PACKAGES[name]]
        with locked("apt"):  # its lists have a lock for which nobody waits
            try:
                run_tool(download, folder)
            except Missing:
                if os.geteuid() == 0:
                    run_tool(["apt-get", "-qq", "update"], folder, tries=FETCH_TRIES)
                run_tool(download, folder, tries=FETCH_TRIES)
        for package in sorted(folder.glob("*.deb")):
            run_tool(["dpkg-deb", "-x", str(package), "."], folder)

    folder = made_once(name, "debian", unpack, making=("apt-get", "dpkg-deb"))
    [program] = (folder / "usr" / "sbin").glob(name)
    libraries = {str(path.parent) for path in folder.glob("usr/lib/**/*.so*")}
    return str(program), {"LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))}


Configure = Callable[[Path, str, int, "str | None", "Papers | None"], tuple[list[str], dict[str, str]]]
"""From a folder, our address, our descriptor, the gateway and papers: arguments and environment."""


@contextlib.contextmanager
def proxy(name: str, folder: Path, gateway: str, papers: Papers | None) -> Iterator[str]:
    """A proxy before the gateway at an address; with `papers` both speak TLS. Its address. Raises Missing."""
    program, environment = command_of(name)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        at = f"127.0.0.1:{listening.getsockname()[1]}"
        configure = nginx if name == "nginx" else haproxy
        arguments, more = configure(folder, at, listening.fileno(), gateway, papers)
        said = folder / "said.txt"
        with said.open("wb") as out:
            process = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(listening.fileno(),),
                env={**variables(), **environment, **more},
                cwd=folder,
            )
    try:

        def greets() -> bool:
            assert process.poll() is None, said.read_text()
            return _greets(at, papers)

        wait_until(greets, seen=said.read_text)
        yield at
        assert process.poll() is None, said.read_text()
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _greets(at: str, papers: Papers | None) -> bool:
    """Whether something takes a connection and says something."""
    host, _, port = at.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0) as link:
        if papers is None:
            link.sendall(PREFACE + settings())
            return bool(link.recv(1))
        context = ssl.create_default_context(cafile=papers.authority)
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(link, server_hostname=host) as secure:
            return secure.selected_alpn_protocol() == "h2"
    return False


def nginx(
    folder: Path, at: str, descriptor: int, gateway: str, papers: Papers | None
) -> tuple[list[str], dict[str, str]]:
    shown, trusted = "", ""
    if papers is not None:
        certificate, key = papers.pair("proxy")
        shown = f'ssl_certificate "{certificate}"; ssl_certificate_key "{key}";'
        trusted = (
            f'grpc_ssl_trusted_certificate "{papers.authority}"; grpc_ssl_verify on;'
            " grpc_ssl_name localhost; grpc_ssl_server_name on; grpc_ssl_protocols TLSv1.2 TLSv1.3;"
        )
    temporary = "".join(
        f'{kind}_temp_path "{folder / kind}";'
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"""
        daemon off;
        {"user root;" if os.geteuid() == 0 else ""}
        worker_processes 1;
        pid "{folder / "nginx.pid"}";
        error_log stderr warn;
        events {{ worker_connections 1024; }}
        http {{
            access_log off;
            {temporary}
            server {{
                listen {at} {"ssl http2" if papers else "http2"};
                {shown}
                client_max_body_size 0;
                location / {{
                    grpc_pass {"grpcs" if papers else "grpc"}://{gateway};
                    grpc_read_timeout 1h;   # Telemetry and long polls say nothing for long
                    grpc_send_timeout 1h;
                    client_body_timeout 1h;
                    grpc_socket_keepalive on;
                    {trusted}
                }}
            }}
        }}
        """
    )
    # As a version of nginx hands its sockets to the next one.
    return ["-c", str(configuration), "-e", "stderr"], {"NGINX": f"{descriptor};"}


def haproxy(
    folder: Path, _at: str, descriptor: int, gateway: str, papers: Papers | None
) -> tuple[list[str], dict[str, str]]:
    shown, trusted = "proto h2", "proto h2"
    if papers is not None:
        both = folder / "proxy.pem"
        both.write_bytes(b"".join(file.read_bytes() for file in papers.pair("proxy")))
        shown = f'ssl crt "{both}" alpn h2'
        trusted = f'ssl alpn h2 verify required ca-file "{papers.authority}" sni str(localhost)'
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"""
defaults
    mode http
    timeout connect 1m
    timeout client 1h
    timeout server 1h
frontend clients
    bind fd@{descriptor} {shown}
    default_backend gateways
backend gateways
    server gateway {gateway} {trusted}
"""
    )
    return ["-db", "-f", str(configuration)], {}
