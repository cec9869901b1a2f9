"""`Admin` whose methods block."""

from sdk.admin.client import Admin as AsyncAdmin
from sdk.blocking.client import Client
from sdk.blocking.facade import Facade, call_of, loop_of
from sdk.checked import Milliseconds
from sdk.credentials import GivenCredentials, GivenTls
from sdk.nameservers import NameServerSource
from sdk.namespaces import Namespace


class Admin(Facade[AsyncAdmin]):
    """Asks NameServers and brokers; ``with Admin("127.0.0.1:9876") as admin: ...``.

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. Without
    NameServers, methods that take a broker's address work; the others raise UserError. ``timeout_ms`` is for each
    request. Topics and groups that are given are names in ``namespace``, by default that of the `Client`; results have
    the names that brokers know, which may be given, too.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        timeout_ms: Milliseconds = 5000,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
    ) -> None:
        super().__init__(
            loop_of(
                nameserver,
                lambda client: AsyncAdmin(
                    client, timeout_ms=timeout_ms, namespace=namespace, credentials=credentials, tls=tls
                ),
            )
        )

    # --- routes and clusters

    topic_route = call_of(AsyncAdmin.topic_route)
    cluster_info = call_of(AsyncAdmin.cluster_info)
    brokers_of_cluster = call_of(AsyncAdmin.brokers_of_cluster)
    broker_addr_of = call_of(AsyncAdmin.broker_addr_of)

    # --- topics

    create_topic = call_of(AsyncAdmin.create_topic)
    create_topics = call_of(AsyncAdmin.create_topics)
    delete_topic_in_broker = call_of(AsyncAdmin.delete_topic_in_broker)
    delete_topic_in_namesrv = call_of(AsyncAdmin.delete_topic_in_namesrv)
    topic_list = call_of(AsyncAdmin.topic_list)
    topics_by_cluster = call_of(AsyncAdmin.topics_by_cluster)
    system_topics = call_of(AsyncAdmin.system_topics)
    system_topics_of_broker = call_of(AsyncAdmin.system_topics_of_broker)
    topic_config = call_of(AsyncAdmin.topic_config)
    all_topic_config = call_of(AsyncAdmin.all_topic_config)
    topic_stats = call_of(AsyncAdmin.topic_stats)
    groups_of_topic = call_of(AsyncAdmin.groups_of_topic)

    # --- groups

    create_group = call_of(AsyncAdmin.create_group)
    create_groups = call_of(AsyncAdmin.create_groups)
    set_consume_mode = call_of(AsyncAdmin.set_consume_mode)
    delete_group = call_of(AsyncAdmin.delete_group)
    all_groups = call_of(AsyncAdmin.all_groups)
    group_config = call_of(AsyncAdmin.group_config)
    group_exists = call_of(AsyncAdmin.group_exists)
    consume_stats = call_of(AsyncAdmin.consume_stats)
    consumer_connection = call_of(AsyncAdmin.consumer_connection)
    consumer_running_info = call_of(AsyncAdmin.consumer_running_info)
    consumer_status = call_of(AsyncAdmin.consumer_status)
    producer_connection = call_of(AsyncAdmin.producer_connection)
    all_producers = call_of(AsyncAdmin.all_producers)

    # --- offsets of groups

    reset_offsets = call_of(AsyncAdmin.reset_offsets)
    reset_queue = call_of(AsyncAdmin.reset_queue)
    roll_back_offsets = call_of(AsyncAdmin.roll_back_offsets)
    clone_group_offsets = call_of(AsyncAdmin.clone_group_offsets)
    consume_time_spans = call_of(AsyncAdmin.consume_time_spans)
    broker_consume_stats = call_of(AsyncAdmin.broker_consume_stats)

    # --- messages and queues

    query_message_by_key = call_of(AsyncAdmin.query_message_by_key)
    query_by_unique_key = call_of(AsyncAdmin.query_by_unique_key)
    view_message = call_of(AsyncAdmin.view_message)
    view_messages = call_of(AsyncAdmin.view_messages)
    consume_message_directly = call_of(AsyncAdmin.consume_message_directly)
    max_offset = call_of(AsyncAdmin.max_offset)
    min_offset = call_of(AsyncAdmin.min_offset)
    search_offset = call_of(AsyncAdmin.search_offset)
    earliest_store_time = call_of(AsyncAdmin.earliest_store_time)
    query_consume_queue = call_of(AsyncAdmin.query_consume_queue)

    # --- brokers

    delete_expired_commit_log = call_of(AsyncAdmin.delete_expired_commit_log)
    clean_expired_consume_queue = call_of(AsyncAdmin.clean_expired_consume_queue)
    clean_unused_topic = call_of(AsyncAdmin.clean_unused_topic)
    broker_runtime_info = call_of(AsyncAdmin.broker_runtime_info)
    broker_config = call_of(AsyncAdmin.broker_config)
    update_broker_config = call_of(AsyncAdmin.update_broker_config)
    broker_ha_status = call_of(AsyncAdmin.broker_ha_status)
    broker_epochs = call_of(AsyncAdmin.broker_epochs)
    reset_master_flush_offset = call_of(AsyncAdmin.reset_master_flush_offset)
    broker_stats = call_of(AsyncAdmin.broker_stats)
    wipe_write_perm = call_of(AsyncAdmin.wipe_write_perm)
    add_write_perm = call_of(AsyncAdmin.add_write_perm)

    # --- Controllers; ``addrs``: Controllers of one group, among which the leader is found

    controller_metadata = call_of(AsyncAdmin.controller_metadata)
    controller_config = call_of(AsyncAdmin.controller_config)
    update_controller_config = call_of(AsyncAdmin.update_controller_config)
    sync_state_sets = call_of(AsyncAdmin.sync_state_sets)
    elect_master = call_of(AsyncAdmin.elect_master)
    clean_broker_metadata = call_of(AsyncAdmin.clean_broker_metadata)
    controller_members = call_of(AsyncAdmin.controller_members)

    # --- NameServers

    namesrv_config = call_of(AsyncAdmin.namesrv_config)
    update_namesrv_config = call_of(AsyncAdmin.update_namesrv_config)
    put_kv = call_of(AsyncAdmin.put_kv)
    delete_kv = call_of(AsyncAdmin.delete_kv)
    get_kv = call_of(AsyncAdmin.get_kv)
    kv_list = call_of(AsyncAdmin.kv_list)

    # --- users of a broker set; slaves copy those of their master

    create_user = call_of(AsyncAdmin.create_user)
    update_user = call_of(AsyncAdmin.update_user)
    delete_user = call_of(AsyncAdmin.delete_user)
    get_user = call_of(AsyncAdmin.get_user)
    list_users = call_of(AsyncAdmin.list_users)
    create_acl = call_of(AsyncAdmin.create_acl)
    update_acl = call_of(AsyncAdmin.update_acl)
    delete_acl = call_of(AsyncAdmin.delete_acl)
    get_acl = call_of(AsyncAdmin.get_acl)
    list_acls = call_of(AsyncAdmin.list_acls)

    # --- accounts in files, which each broker has of its own, slaves as well

    update_account = call_of(AsyncAdmin.update_account)
    delete_account = call_of(AsyncAdmin.delete_account)
    update_white_list = call_of(AsyncAdmin.update_white_list)
    account_versions = call_of(AsyncAdmin.account_versions)
    accounts = call_of(AsyncAdmin.accounts)
    explain_access = call_of(AsyncAdmin.explain_access)
