// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/weft-storage/weft/internal/tracing"
)

// tracedCalls are those that are asked to change something. The others look at what is there, most of them every few
// seconds or for each volume every minute: they would hide these.
var tracedCalls = []string{
	csi.Controller_CreateVolume_FullMethodName, csi.Controller_DeleteVolume_FullMethodName,
	csi.Controller_ControllerPublishVolume_FullMethodName, csi.Controller_ControllerUnpublishVolume_FullMethodName,
	csi.Controller_ControllerExpandVolume_FullMethodName, csi.Controller_ControllerModifyVolume_FullMethodName,
	csi.Controller_CreateSnapshot_FullMethodName, csi.Controller_DeleteSnapshot_FullMethodName,
	csi.Node_NodeStageVolume_FullMethodName, csi.Node_NodeUnstageVolume_FullMethodName,
	csi.Node_NodePublishVolume_FullMethodName, csi.Node_NodeUnpublishVolume_FullMethodName,
	csi.Node_NodeExpandVolume_FullMethodName,
}

// traced is what a server needs so that calls are traced, below the caller's span if it sends one (W3C's traceparent).
func traced(ctx context.Context) []grpc.ServerOption {
	traces := tracing.Provider(ctx)
	if traces == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(traces),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()), // weft_csi_call_seconds has them
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool { return slices.Contains(tracedCalls, call.FullMethodName) }),
	))}
}

// attributes name what a request is about. They are taken one by one: a request has secrets too.
func attributes(req any) []attribute.KeyValue {
	var list []attribute.KeyValue
	add := func(key attribute.Key, name string) {
		if name != "" {
			list = append(list, key.String(name))
		}
	}
	switch r := req.(type) {
	case *csi.CreateSnapshotRequest:
		add(tracing.VolumeKey, r.GetSourceVolumeId())
		add(tracing.SnapshotKey, r.GetName())
	case *csi.CreateVolumeRequest:
		add(tracing.VolumeKey, r.GetName())
	case interface{ GetVolumeId() string }:
		add(tracing.VolumeKey, r.GetVolumeId())
	case interface{ GetSnapshotId() string }:
		add(tracing.SnapshotKey, r.GetSnapshotId())
	}
	return list
}
