"""`popgate clients`: lists connected clients, and sends them requests."""

from __future__ import annotations

from typing import Annotated

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown
from proxy.cli.console.terminal import Output, Printer, title, visible

app = typer.Typer(help="Connected clients: list, ask and tell them.", invoke_without_command=True)

Client = Annotated[
    str, typer.Argument(metavar="CLIENT", help="The client's id, as `popgate clients` lists it.")
]


@app.callback()
def list_(
    context: typer.Context,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """List the clients that this gateway knows; or ask one of them, or tell them something."""
    if context.invoked_subcommand is None:
        _list(admin, output)


@app.command("list")
def listed(admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """List the clients that this gateway knows, as `popgate clients` does by itself."""
    _list(admin, output)


def _list(admin: str, output: Output) -> None:
    with Gateway(admin) as gateway:
        clients = gateway.get("clients")["clients"]
    rows = [
        (
            *(client["client_id"], client["kind"], client["language"], client["group"], client["topics"]),
            *(client["lite_topics"], client["connected"]),
        )
        for client in clients
    ]
    Printer(output).table(
        ("client", "kind", "language", "group", "topics", "lite topics", "connected"), rows, clients
    )


@app.command()
def show(client: Client, admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """Show a client, and what it said of the delivery that it acknowledged, hid or gave up last."""
    with Gateway(admin) as gateway:
        known = {
            known_client["client_id"]: known_client for known_client in gateway.get("clients")["clients"]
        }
    if client not in known:
        raise Failure(Ended.NOTHING, f"client {visible(client)} is not known here", "NOT_FOUND")
    facts = known[client]
    rows = [(name, value) for name, value in facts.items() if name != "last_settled"]
    rows += [(f"last settled: {name}", value) for name, value in (facts["last_settled"] or {}).items()]
    Printer(output).table(("", ""), rows, facts)


@app.command()
def stack(client: Client, admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """Ask a client what its threads are doing."""
    with Gateway(admin) as gateway:
        response = gateway.post("clients", client, "stack", body={})
    printer = Printer(output)
    if printer.as_json:
        printer.done("", response)
        return
    for line in response["stack"].splitlines():
        typer.echo(title(line) if line.strip() and not line[0].isspace() else visible(line))


@app.command()
def verify(
    client: Client,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID")],
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group of the client.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic that has the message.")],
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Make a client consume one stored message now, whatever its group has read."""
    body = {"group": group, "topic": topic, "message_id": message_id}
    with Gateway(admin) as gateway:
        response = gateway.post("clients", client, "verify", body=body)
    sentence = _RESULTS[response["result"]].format(message=message_id, client=client)
    if response["result"] != "consumed":
        raise Failure(Ended.FAILED, visible(sentence), response["result"].upper())
    Printer(output).done(sentence, response)


@app.command()
def reconnect(
    client: Annotated[str | None, typer.Argument(metavar="CLIENT")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All clients that are connected here.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Tell a client, or all of them, to connect anew; older clients do not know the command."""
    if (client is None) != all_:
        raise typer.BadParameter("name one client, or give --all")
    with Gateway(admin) as gateway:
        if client is None:
            response = gateway.post("clients", body={"reconnect": "all"})
        else:
            response = gateway.post("clients", client, "reconnect", body={})
    sentence = f"told to reconnect: {response['told']}"
    if response["not_told"]:
        sentence += f"; not told, since they read too slowly: {response['not_told']}"
    Printer(output).done(sentence, response)


_RESULTS = {
    "consumed": "message {message} was consumed by client {client}",
    "failed": "client {client} failed to consume message {message}",
    "corrupted": "client {client} could not read message {message}",
}
