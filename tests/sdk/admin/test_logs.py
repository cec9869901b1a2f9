"""setLogLevel."""

from tests.sdk.admin.fake import MASTER, NAMESRV, SLAVE, World, run


def test_a_level_is_added_to_those_that_are_set() -> None:
    world = World(configs={MASTER: {"logLevels": "broker.store=DEBUG"}, SLAVE: {"logLevels": ""}})
    result = run(world, "setLogLevel", "-c", "DefaultCluster", "-l", "root", "-v", "warning")
    assert result.stdout == "".join(f"set log level success, {addr}, root : WARNING\n" for addr in (MASTER, SLAVE))
    assert world.called("update_broker_config") == [
        (MASTER, {"logLevels": "broker.store=DEBUG;root=WARNING"}),
        (SLAVE, {"logLevels": "root=WARNING"}),
    ]


def test_a_level_is_taken_away() -> None:
    world = World(configs={NAMESRV: {"logLevels": "namesrv=DEBUG;root=ERROR"}})
    result = run(world, "setLogLevel", "-s", "-l", "namesrv", "-v", "default")
    assert result.exit_code == 0
    assert world.called("update_namesrv_config") == [(NAMESRV, {"logLevels": "root=ERROR"})]


def test_rocketmqs_brokers_are_left_alone() -> None:
    world = World(configs={MASTER: {"a": "b"}})
    result = run(world, "setLogLevel", "-b", MASTER, "-l", "root", "-v", "INFO")
    assert result.exit_code == 1
    assert "only Skylark's servers" in result.stderr
    assert world.called("update_broker_config") == []


def test_a_logger_that_cannot_be_named_is_refused_before_anything_is_sent() -> None:
    world = World(configs={MASTER: {"logLevels": ""}})
    assert run(world, "setLogLevel", "-b", MASTER, "-l", "a b", "-v", "INFO").exit_code == 1
    assert world.called("update_broker_config") == []
