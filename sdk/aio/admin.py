"""`Admin` for asyncio."""

from skylark.sdk.admin.client import Admin as TrioAdmin
from skylark.sdk.aio.facade import Client, Facade, call_of
from skylark.sdk.checked import Milliseconds
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace


class Admin(Facade[TrioAdmin], of=TrioAdmin):
    """`sdk.Admin` for asyncio."""

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        timeout_ms: Milliseconds = 5000,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
    ) -> None:
        super().__init__(nameserver, locals())

    # --- routes and clusters

    topic_route = call_of(TrioAdmin.topic_route)
    cluster_info = call_of(TrioAdmin.cluster_info)
    brokers_of_cluster = call_of(TrioAdmin.brokers_of_cluster)
    broker_addr_of = call_of(TrioAdmin.broker_addr_of)

    # --- topics

    create_topic = call_of(TrioAdmin.create_topic)
    create_topics = call_of(TrioAdmin.create_topics)
    delete_topic_in_broker = call_of(TrioAdmin.delete_topic_in_broker)
    delete_topic_in_namesrv = call_of(TrioAdmin.delete_topic_in_namesrv)
    topic_list = call_of(TrioAdmin.topic_list)
    topics_by_cluster = call_of(TrioAdmin.topics_by_cluster)
    system_topics = call_of(TrioAdmin.system_topics)
    system_topics_of_broker = call_of(TrioAdmin.system_topics_of_broker)
    topic_config = call_of(TrioAdmin.topic_config)
    all_topic_config = call_of(TrioAdmin.all_topic_config)
    topic_stats = call_of(TrioAdmin.topic_stats)
    groups_of_topic = call_of(TrioAdmin.groups_of_topic)
    groups_of_topic_at = call_of(TrioAdmin.groups_of_topic_at)

    # --- groups

    create_group = call_of(TrioAdmin.create_group)
    create_groups = call_of(TrioAdmin.create_groups)
    set_consume_mode = call_of(TrioAdmin.set_consume_mode)
    delete_group = call_of(TrioAdmin.delete_group)
    all_groups = call_of(TrioAdmin.all_groups)
    group_config = call_of(TrioAdmin.group_config)
    group_exists = call_of(TrioAdmin.group_exists)
    consume_stats = call_of(TrioAdmin.consume_stats)
    consume_stats_at = call_of(TrioAdmin.consume_stats_at)
    consumer_connection = call_of(TrioAdmin.consumer_connection)
    query_subscription = call_of(TrioAdmin.query_subscription)
    consumer_running_info = call_of(TrioAdmin.consumer_running_info)
    consumer_status = call_of(TrioAdmin.consumer_status)
    producer_connection = call_of(TrioAdmin.producer_connection)
    all_producers = call_of(TrioAdmin.all_producers)

    # --- offsets of groups

    reset_offsets = call_of(TrioAdmin.reset_offsets)
    reset_queue = call_of(TrioAdmin.reset_queue)
    roll_back_offsets = call_of(TrioAdmin.roll_back_offsets)
    clone_group_offsets = call_of(TrioAdmin.clone_group_offsets)
    consume_time_spans = call_of(TrioAdmin.consume_time_spans)
    broker_consume_stats = call_of(TrioAdmin.broker_consume_stats)

    # --- messages and queues

    query_message_by_key = call_of(TrioAdmin.query_message_by_key)
    query_by_unique_key = call_of(TrioAdmin.query_by_unique_key)
    view_message = call_of(TrioAdmin.view_message)
    view_messages = call_of(TrioAdmin.view_messages)
    consume_message_directly = call_of(TrioAdmin.consume_message_directly)
    max_offset = call_of(TrioAdmin.max_offset)
    min_offset = call_of(TrioAdmin.min_offset)
    search_offset = call_of(TrioAdmin.search_offset)
    earliest_store_time = call_of(TrioAdmin.earliest_store_time)
    query_consume_queue = call_of(TrioAdmin.query_consume_queue)

    # --- dead letters; functions passed as arguments are called in the client's thread

    dead_letters = call_of(TrioAdmin.dead_letters)
    resend_dead_letters = call_of(TrioAdmin.resend_dead_letters)
    export_dead_letters = call_of(TrioAdmin.export_dead_letters)

    # --- static topics

    static_topic = call_of(TrioAdmin.static_topic)
    put_static_topic = call_of(TrioAdmin.put_static_topic)
    own_max_offset = call_of(TrioAdmin.own_max_offset)

    # --- backups and scrubs

    begin_backup = call_of(TrioAdmin.begin_backup)
    backup_status = call_of(TrioAdmin.backup_status)
    begin_scrub = call_of(TrioAdmin.begin_scrub)
    scrub_status = call_of(TrioAdmin.scrub_status)

    # --- tiered storage

    tier_status = call_of(TrioAdmin.tier_status)
    begin_tier_purge = call_of(TrioAdmin.begin_tier_purge)
    take_tier_over = call_of(TrioAdmin.take_tier_over)

    # --- brokers and topics that become smaller

    drain_broker = call_of(TrioAdmin.drain_broker)
    drain_status = call_of(TrioAdmin.drain_status)
    seal_queues = call_of(TrioAdmin.seal_queues)
    read_sealed = call_of(TrioAdmin.read_sealed)
    store_moved = call_of(TrioAdmin.store_moved)
    note_moved = call_of(TrioAdmin.note_moved)
    closed_queues = call_of(TrioAdmin.closed_queues)

    # --- brokers

    delete_expired_commit_log = call_of(TrioAdmin.delete_expired_commit_log)
    clean_expired_consume_queue = call_of(TrioAdmin.clean_expired_consume_queue)
    clean_unused_topic = call_of(TrioAdmin.clean_unused_topic)
    switch_timer_engine = call_of(TrioAdmin.switch_timer_engine)
    broker_runtime_info = call_of(TrioAdmin.broker_runtime_info)
    broker_config = call_of(TrioAdmin.broker_config)
    update_broker_config = call_of(TrioAdmin.update_broker_config)
    broker_ha_status = call_of(TrioAdmin.broker_ha_status)
    broker_epochs = call_of(TrioAdmin.broker_epochs)
    reset_master_flush_offset = call_of(TrioAdmin.reset_master_flush_offset)
    broker_stats = call_of(TrioAdmin.broker_stats)
    forget_broker = call_of(TrioAdmin.forget_broker)
    wipe_write_perm = call_of(TrioAdmin.wipe_write_perm)
    add_write_perm = call_of(TrioAdmin.add_write_perm)

    # --- Controllers; ``addrs``: Controllers of one group, among which the leader is found

    controller_metadata = call_of(TrioAdmin.controller_metadata)
    controller_config = call_of(TrioAdmin.controller_config)
    update_controller_config = call_of(TrioAdmin.update_controller_config)
    sync_state_sets = call_of(TrioAdmin.sync_state_sets)
    elect_master = call_of(TrioAdmin.elect_master)
    clean_broker_metadata = call_of(TrioAdmin.clean_broker_metadata)
    controller_members = call_of(TrioAdmin.controller_members)
    dledger_members = call_of(TrioAdmin.dledger_members)

    # --- NameServers

    namesrv_config = call_of(TrioAdmin.namesrv_config)
    update_namesrv_config = call_of(TrioAdmin.update_namesrv_config)
    put_kv = call_of(TrioAdmin.put_kv)
    delete_kv = call_of(TrioAdmin.delete_kv)
    get_kv = call_of(TrioAdmin.get_kv)
    kv_list = call_of(TrioAdmin.kv_list)

    # --- users of a broker set; slaves copy their master's users

    create_user = call_of(TrioAdmin.create_user)
    update_user = call_of(TrioAdmin.update_user)
    delete_user = call_of(TrioAdmin.delete_user)
    get_user = call_of(TrioAdmin.get_user)
    list_users = call_of(TrioAdmin.list_users)
    create_acl = call_of(TrioAdmin.create_acl)
    update_acl = call_of(TrioAdmin.update_acl)
    delete_acl = call_of(TrioAdmin.delete_acl)
    get_acl = call_of(TrioAdmin.get_acl)
    list_acls = call_of(TrioAdmin.list_acls)

    # --- accounts in files; each broker, slaves too, has its own files

    update_account = call_of(TrioAdmin.update_account)
    delete_account = call_of(TrioAdmin.delete_account)
    update_white_list = call_of(TrioAdmin.update_white_list)
    account_versions = call_of(TrioAdmin.account_versions)
    accounts = call_of(TrioAdmin.accounts)
    explain_access = call_of(TrioAdmin.explain_access)
