# Short names for people who have set up .venv (tests/run.sh does it); the two README commands need no make.
PY = .venv/bin/python

.PHONY: serve test fast check proto docs bench bench-remoting bench-spark bench-spark-kafka before-after benchmarks

serve: ## start the gateway on the embedded broker
	sh deploy/serve.sh

test: ## everything that must pass
	sh tests/run.sh

fast: ## the fast tier of the tests, and what check has
	sh tests/run.sh --tier fast

check: ## the quick part: style, types, imports
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports

proto: ## generate popgate/pb from proto/
	$(PY) proto/generate.py

docs: ## generate what is generated in docs/, and the schema of the chart's values
	$(PY) -m proxy.pages.reference
	$(PY) -m proxy.pages.chart_schema
	$(PY) tests/surface/document.py

bench: ## beside RocketMQ's own proxy, gRPC and remoting, 45 minutes, into docs/performance; or as BENCH="--quick --only ready" says
	$(PY) benchmarks/bench.py $(COMPILED:%=--compiled %) $(or $(BENCH),--out docs/performance)
	$(if $(BENCH),,$(MAKE) bench-remoting)

bench-remoting: ## the part of bench for classic clients, about six minutes; of a compiled copy with COMPILED=DIR, as bench
	$(PY) benchmarks/remoting_door.py $(COMPILED:%=--compiled %) \
		--rounds 3 --messages 20000 --out docs/performance/remoting.json

bench-spark: ## what Spark reads and writes through the gateway, about four minutes; COMPILED=DIR as above
	$(PY) benchmarks/spark.py $(COMPILED:%=--compiled %) $(BENCH)

bench-spark-kafka: ## the same beside Spark's own Kafka source and sink, in Spark 4.2; COMPILED=DIR as above
	$(PY) benchmarks/spark_beside_kafka.py $(COMPILED:%=--compiled %) $(or $(BENCH),--out docs/performance)

before-after: ## the wheel of a commit and that of the checkout in turn: make before-after BEFORE=5f1b65b
	$(PY) benchmarks/before_after.py $(BEFORE) $(AFTER) $(BENCH)

benchmarks: ## every other benchmark, shortly
	for b in $(filter-out benchmarks/bench.py,$(wildcard benchmarks/*.py)); do $(PY) $$b --quick || exit 1; done
