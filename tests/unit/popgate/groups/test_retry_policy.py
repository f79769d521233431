from popgate.groups.retry_policy import DEFAULT_RETRY, CustomizedRetry, ExponentialRetry


def test_the_default_retries_climb_the_ladder_from_its_third_step() -> None:
    assert [DEFAULT_RETRY.delay_ms(n) for n in (1, 2, 3)] == [10_000, 30_000, 60_000]
    assert DEFAULT_RETRY.delay_ms(16) == DEFAULT_RETRY.delay_ms(1000) == 7_200_000
    assert DEFAULT_RETRY.delay_ms(0) == 10_000


def test_a_customized_ladder_may_be_short() -> None:
    assert [CustomizedRetry((100, 200), first_step=0).delay_ms(n) for n in (1, 2, 3)] == [100, 200, 200]
    assert CustomizedRetry((100,)).delay_ms(1) == 100


def test_exponential_retries_double_up_to_their_limit() -> None:
    retry = ExponentialRetry()
    assert [retry.delay_ms(n) for n in (1, 2, 3)] == [5_000, 10_000, 20_000]
    assert retry.delay_ms(1_000_000) == 7_200_000
