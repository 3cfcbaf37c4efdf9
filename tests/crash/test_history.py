"""The checker accepts what a correct queue does and catches each promise when it is broken."""

from dataclasses import replace

from history import Ack, Delivery, History, Push, check


def good_history():
    """Two pushes to one partition, read and acked by one group, the second message twice."""
    history = History(groups=("g",))
    history.pushes = [
        Push("p", ("a", "b"), 1, 2),
        Push("p", ("c",), 3, 4),
        Push("p", ("unheard",), 5, None),
    ]
    history.deliveries = [
        Delivery("g", "p", "a", 0, True, 6, 7),
        Delivery("g", "p", "b", 1, True, 6, 7),
        Delivery("g", "p", "b", 1, True, 12, 13),
        Delivery("g", "p", "c", 2, True, 12, 13),
    ]
    history.acks = [
        Ack("g", "a", 8, 9),
        Ack("g", "b", 10, None),
        Ack("g", "b", 14, 15),
        Ack("g", "c", 14, 15),
    ]
    return history


def promises(history):
    return {violation.promise for violation in check(history)}


def test_a_correct_history_breaks_no_promise():
    assert check(good_history()) == []


def test_an_unanswered_push_may_appear_or_not():
    history = good_history()
    history.deliveries.append(Delivery("g", "p", "unheard", 3, True, 16, 17))
    assert check(history) == []


def test_an_accepted_message_that_never_came_is_a_loss():
    history = good_history()
    history.deliveries = [delivery for delivery in history.deliveries if delivery.id != "c"]
    assert promises(history) == {"lost"}


def test_a_message_that_only_one_group_received_is_a_loss():
    history = good_history()
    history.groups = ("g", "h")
    assert promises(history) == {"lost"}


def test_a_message_delivered_but_never_finished_and_gone_is_a_loss():
    history = good_history()
    history.acks = [ack for ack in history.acks if ack.id != "c"]
    assert promises(history) == {"lost"}


def test_a_message_that_nobody_pushed_is_invented():
    history = good_history()
    history.deliveries.append(Delivery("g", "p", "ghost", 9, True, 16, 17))
    assert promises(history) == {"invented"}


def test_a_message_from_another_partition_is_invented():
    history = good_history()
    history.deliveries[0] = replace(history.deliveries[0], partition="q")
    assert "invented" in promises(history)


def test_another_payload_is_invented():
    history = good_history()
    history.deliveries[3] = replace(history.deliveries[3], intact=False)
    assert promises(history) == {"invented"}


def test_a_message_delivered_before_its_push_is_invented():
    history = good_history()
    history.deliveries.insert(0, Delivery("g", "p", "a", 0, True, 0, 0.5))
    assert "invented" in promises(history)


def test_one_id_at_two_places_is_a_repetition():
    history = good_history()
    history.deliveries[2] = replace(history.deliveries[2], offset=7)
    assert "one id, one message" in promises(history)


def test_one_place_with_two_messages_is_disorder():
    history = good_history()
    history.deliveries[3] = replace(history.deliveries[3], offset=1)
    assert "order" in promises(history)


def test_a_later_push_stored_before_an_earlier_one_is_disorder():
    history = good_history()
    history.deliveries = [
        replace(delivery, offset={"a": 1, "b": 2, "c": 0}[delivery.id]) for delivery in history.deliveries
    ]
    assert "order" in promises(history)


def test_items_of_one_push_stored_in_another_order_are_disorder():
    history = good_history()
    history.deliveries = [
        replace(delivery, offset={"a": 1, "b": 0, "c": 2}[delivery.id]) for delivery in history.deliveries
    ]
    assert "order" in promises(history)


def test_a_later_push_delivered_before_an_earlier_one_is_disorder():
    history = good_history()
    history.deliveries.insert(0, Delivery("g", "p", "c", 2, True, 5.1, 5.2))
    assert promises(history) == {"order"}


def test_items_of_one_answer_in_another_order_are_disorder():
    history = good_history()
    history.deliveries[0], history.deliveries[1] = history.deliveries[1], history.deliveries[0]
    assert promises(history) == {"order"}


def test_answers_that_overlapped_have_no_order():
    history = good_history()
    history.deliveries.insert(0, Delivery("g", "p", "c", 2, True, 5.1, 6.5))
    assert check(history) == []


def test_pushes_that_overlapped_have_no_order():
    history = good_history()
    history.pushes[1] = replace(history.pushes[1], start=1.5)
    history.deliveries = [
        replace(delivery, offset={"a": 1, "b": 2, "c": 0}[delivery.id]) for delivery in history.deliveries
    ]
    assert check(history) == []


def test_an_acked_message_that_comes_again_is_caught():
    history = good_history()
    history.deliveries.append(Delivery("g", "p", "a", 0, True, 20, 21))
    assert promises(history) == {"acked is done"}


def test_an_ack_of_one_group_does_not_finish_for_another():
    history = good_history()
    history.groups = ("g", "h")
    for id, offset in (("a", 0), ("b", 1), ("c", 2)):
        history.deliveries.append(Delivery("h", "p", id, offset, True, 20, 21))
        history.acks.append(Ack("h", id, 22, 23))
    assert check(history) == []
