"""The product has no code that only tests use: vulture looks for names that stand nowhere else in the product."""

import ast

from vulture import Vulture
from vulture.noqa import parse_noqa

from tests.tidy.tree import PACKAGES, ROOT, modules

OTHER_CALLERS = ("scripts", "pyspark_rocketmq.py", "kombu_rocketmq.py")
# The fields and words of RocketMQ, HTTP/2 and gRPC are listed whole, used or not.
VOCABULARY = (
    *("remoting/protocol/requests/", "remoting/protocol/codes.py", "remoting/http2/errors.py"),
    *("remoting/grpc/statuses.py", "mqcommon/message/", "mqcommon/names.py"),
)
# Members of reports are read by programs, and by their names in JSON.
REPORTS = (
    "sdk/admin/reports/",
    "sdk/admin/topology.py",
    "sdk/admin/topic_changes.py",
    "mqadmin/commands/",
    "mqconsole/",
)
# scripts/proto makes it.
GENERATED = "mqproxy/wire/"
# Python, click, OpenTelemetry, reprlib, PyYAML, Arrow, Spark and FastStream look for these names.
OF_LIBRARIES = {
    *(
        "__dataclass_params__",
        "__delattr__",
        "__getattr__",
        "__getstate__",
        "__init_subclass__",
        "__replace__",
        "__setstate__",
        "__signature__",
        "_instrument",
        "_uninstrument",
        "create_module",
        "exec_module",
        "get_source",
        "instrumentation_dependencies",
        "format_commands",
        "flow_style",
        "maxlong",
        "maxother",
        "maxstring",
        "requested_schema",
    ),
    *("streamReader", "streamWriter", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow"),
    *("onQueryStarted", "onQueryProgress", "onQueryTerminated"),
    *("register_subscriber", "get_logger", "publish_batch", "get_publish_key"),
    *("get_schema", "channel_labels", "_make_response_publisher", "get_one"),
    "_SubscriberUsecase__auto_ack_disabled",
    *("_patch_producer", "_fake_connect", "create_publisher_fake_subscriber", "broker_class"),
}
# skylark.cli.main names the commands as texts, so that each is imported when it is called.
OF_THE_COMMAND = {"dev", "show_version"}
# kombu looks for these names in transports and channels.
OF_KOMBU = {
    *("_has_queue", "_new_queue", "_queue_bind", "basic_publish", "queue_delete", "if_unused"),
    "prepare_queue_arguments",
    *("can_parse_url", "driver_name", "driver_type", "driver_version", "supports_fanout"),
    *("recoverable_channel_errors", "recoverable_connection_errors", "verify_connection"),
    *("drain_events", "register_with_event_loop", "unregister_from_event_loop"),
}
# Programs use these; interpreters and editors ask for the names in a module.
OF_THE_SDK = {"__dir__", "send_in_transaction", "rollback", "leave_open"}
# Jinja looks for these, and the console's templates call some.
OF_THE_CONSOLE = {
    *("lstrip_blocks", "trim_blocks", "page_link", "sort_link"),
}
# RocketMQ's command has this option; there is nothing to do for it.
OF_ROCKETMQ = {"cplus"}
# Parts of a whole that is read or written by its fields.
FIELDS = {
    *("checkpoint_location", "query_name"),
    "reserved",
    # gRPC's messages: fields that clients read
    *("max_attempts", "max_body_size", "receive_batch_size"),
    *("validate_message_type",),
}


def members_of_reports() -> set[tuple[str, int]]:
    """Path and line of each annotated member of a class in REPORTS."""
    return {
        (module.path, member.lineno)
        for module in modules(*REPORTS)
        for node in module.classes()
        for member in node.body
        if isinstance(member, ast.AnnAssign)
    }


def test_everything_is_used_by_the_product_itself() -> None:
    reported = members_of_reports()
    finder = Vulture()
    # Ruff and mypy find what cannot be reached, and a generator may have its only yield there.
    finder.reachability.visit = lambda node: None
    for module in modules():
        # What `Vulture.scan` does, with the tree that other tests have, too.
        finder.filename, finder.code = ROOT / module.path, module.text.splitlines()
        finder.noqa_lines = parse_noqa(finder.code)
        finder.visit(module.tree)
    finder.scavenge([ROOT / caller for caller in OTHER_CALLERS])
    found = {
        item.name
        for item in finder.get_unused_code()
        if (path := item.filename.relative_to(ROOT).as_posix()).startswith(PACKAGES)
        and not path.startswith(GENERATED)
        and not (item.typ == "variable" and path.startswith(VOCABULARY))
        and (path, item.first_lineno) not in reported
    }
    assert found == OF_LIBRARIES | OF_THE_COMMAND | OF_KOMBU | OF_THE_SDK | OF_THE_CONSOLE | OF_ROCKETMQ | FIELDS
