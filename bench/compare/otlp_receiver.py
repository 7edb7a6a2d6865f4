"""Receives OTLP metrics over HTTP and decodes them with opentelemetry-proto.

Writes its port to the file PORT, and a line of JSON for each point to the file POINTS:
    python3 otlp_receiver.py PORT POINTS
"""

import http.server
import json
import os
import sys

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.metrics.v1 import metrics_pb2 as metrics


def texts(attributes):
    return {pair.key: pair.value.string_value for pair in attributes}


def points(request):
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                delta = metrics.AGGREGATION_TEMPORALITY_DELTA
                assert metric.sum.aggregation_temporality == delta, metric
                for point in metric.sum.data_points:
                    yield {
                        "service": texts(resource.resource.attributes)["service.name"],
                        "name": metric.name,
                        "unit": metric.unit,
                        "seconds": (point.time_unix_nano - point.start_time_unix_nano) / 1e9,
                        "value": point.as_double,
                        **texts(point.attributes),
                    }


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = service.ExportMetricsServiceRequest.FromString(body)
        with open(sys.argv[2], "a") as out:
            out.writelines(json.dumps(point) + "\n" for point in points(request))
        answer = service.ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
with open(sys.argv[1] + ".new", "w") as out:
    out.write(str(server.server_port))
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
