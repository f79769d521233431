from popgate.kinds import NO_CREDENTIALS, Action, Credentials, Resource, ResourceKind


def test_credentials_do_not_show_their_secrets() -> None:
    shown = repr(Credentials(access_key="AK", password="hunter2", token="t0ken"))
    assert "AK" in shown
    assert "hunter2" not in shown
    assert "t0ken" not in shown


def test_no_credentials_are_empty() -> None:
    assert Credentials() == NO_CREDENTIALS
    assert not NO_CREDENTIALS.access_key


def test_resources_and_actions_can_be_kept_in_tables() -> None:
    table = {(Resource(ResourceKind.TOPIC, "T"), Action.PUBLISH): True}
    assert table[Resource(ResourceKind.TOPIC, "T"), Action.PUBLISH]
    assert (Resource(ResourceKind.GROUP, "T"), Action.PUBLISH) not in table
