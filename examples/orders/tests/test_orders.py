import pytest
from orders.shop import TOPIC, Shop
from orders.warehouse import Warehouse

from skylark import SendFailed
from skylark.blocking import Producer, PushConsumer
from skylark.testing import Cluster


def test_what_is_ordered_is_reserved(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    warehouse = Warehouse({"tea": 10, "cup": 3})
    with (
        Producer(cluster.nameserver) as producer,
        PushConsumer(cluster.nameserver, group="warehouse", subscriptions={TOPIC: "*"}, handler=warehouse.handle),
    ):
        shop = Shop(producer)
        shop.order(1, "Ada", {"tea": 2, "cup": 1})
        shop.order(2, "Grace", {"tea": 3})
        assert warehouse.wait_for(2)
    assert warehouse.stock == {"tea": 5, "cup": 2}


def test_orders_survive_a_crash_of_the_broker(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    warehouse = Warehouse({"tea": 10})
    (broker,) = cluster.brokers
    with Producer(cluster.nameserver) as producer:
        Shop(producer).order(1, "Ada", {"tea": 2})
        broker.kill()
        broker.start()
        with PushConsumer(cluster.nameserver, group="warehouse", subscriptions={TOPIC: "*"}, handler=warehouse.handle):
            assert warehouse.wait_for(1)
    assert warehouse.stock == {"tea": 8}


def test_an_order_that_cannot_be_stored_is_refused(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    with Producer(cluster.nameserver) as producer:
        Shop(producer).order(1, "Ada", {"tea": 2})
    cluster.brokers[0].freeze()
    with Producer(cluster.nameserver, send_timeout_ms=300) as producer, pytest.raises(SendFailed):
        Shop(producer).order(2, "Ada", {"tea": 2})
    cluster.brokers[0].thaw()
