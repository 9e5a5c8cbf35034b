// SPDX-License-Identifier: Apache-2.0

package spdktest

import "slices"

// A state is when a method may be called.
type state int

const (
	startup state = 1 << iota
	runtime
	always = startup | runtime
)

type method struct {
	name string
	when state
	run  func(*app, *request)
}

// methods lists what the target knows, in the order in which a real one lists its own: rpc_get_methods shows it.
var methods []method

// byName is made from methods.
var byName map[string]method

// Filled here, since rpc_get_methods reads the list that it is in.
func init() {
	methods = slices.Concat(deviceMethods, volumeMethods, nvmfMethods, frameworkMethods)
	byName = make(map[string]method, len(methods))
	for _, m := range methods {
		byName[m.name] = m
	}
}

var deviceMethods = []method{
	{"bdev_nvme_attach_controller", runtime, (*app).bdevNvmeAttach},
	{"bdev_nvme_detach_controller", runtime, (*app).bdevNvmeDetach},
	{"bdev_nvme_send_cmd", runtime, (*app).bdevNvmeSendCmd},
	{"bdev_aio_create", runtime, (*app).bdevAioCreate},
	{"bdev_aio_rescan", runtime, (*app).bdevAioRescan},
	{"bdev_aio_delete", runtime, (*app).bdevAioDelete},
}

var volumeMethods = []method{
	{"bdev_lvol_create_lvstore", runtime, (*app).lvstoreCreate},
	{"bdev_lvol_grow_lvstore", runtime, (*app).lvstoreGrow},
	{"bdev_lvol_get_lvstores", runtime, (*app).lvstoreList},
	{"bdev_lvol_create", runtime, (*app).lvolCreate},
	{"bdev_lvol_snapshot", runtime, (*app).lvolSnapshot},
	{"bdev_lvol_clone", runtime, (*app).lvolClone},
	{"bdev_lvol_rename", runtime, (*app).lvolRename},
	{"bdev_lvol_decouple_parent", runtime, (*app).lvolDecouple},
	{"bdev_lvol_resize", runtime, (*app).lvolResize},
	{"bdev_lvol_delete", runtime, (*app).lvolDelete},
	{"bdev_lvol_set_parent", runtime, (*app).lvolSetParent},
	{"bdev_lvol_get_lvols", runtime, (*app).lvolList},
	{"keyring_file_add_key", runtime, (*app).keyringFileAdd},
	{"keyring_file_remove_key", runtime, (*app).keyringFileRemove},
	{"keyring_get_keys", runtime, (*app).keyringList},
}

var nvmfMethods = []method{
	{"nvmf_get_subsystems", runtime, (*app).nvmfGetSubsystems},
	{"nvmf_create_subsystem", runtime, (*app).nvmfCreateSubsystem},
	{"nvmf_delete_subsystem", runtime, (*app).nvmfDeleteSubsystem},
	{"nvmf_subsystem_add_listener", runtime, (*app).nvmfAddListener},
	{"nvmf_subsystem_remove_listener", runtime, (*app).nvmfRemoveListener},
	{"nvmf_subsystem_add_ns", runtime, (*app).nvmfAddNamespace},
	{"nvmf_subsystem_remove_ns", runtime, (*app).nvmfRemoveNamespace},
	{"nvmf_subsystem_add_host", runtime, (*app).nvmfAddHost},
	{"nvmf_subsystem_remove_host", runtime, (*app).nvmfRemoveHost},
	{"nvmf_subsystem_set_keys", runtime, (*app).nvmfSetKeys},
	{"nvmf_subsystem_get_controllers", runtime, (*app).nvmfGetControllers},
	{"nvmf_create_transport", runtime, (*app).nvmfCreateTransport},
	{"nvmf_get_transports", runtime, (*app).nvmfGetTransports},
	{"nvmf_get_stats", runtime, (*app).nvmfGetStats},
	{"nvmf_set_config", startup, (*app).nvmfSetConfig},
	{"nvmf_set_max_subsystems", startup, (*app).nvmfSetMaxSubsystems},
}

var frameworkMethods = []method{
	{"scheduler_set_options", startup, (*app).schedulerSetOptions},
	{"framework_get_scheduler", always, (*app).frameworkGetScheduler},
	{"framework_set_scheduler", always, (*app).frameworkSetScheduler},
	{"framework_get_reactors", runtime, (*app).frameworkGetReactors},
	{"thread_get_stats", runtime, (*app).threadGetStats},
	{"thread_set_cpumask", runtime, (*app).threadSetCpumask},
	{"framework_get_config", runtime, (*app).frameworkGetConfig},
	{"framework_start_init", startup, (*app).frameworkStartInit},
	{"bdev_get_bdevs", runtime, (*app).bdevGetBdevs},
	{"bdev_set_options", startup, (*app).bdevSetOptions},
	{"nvmf_subsystem_listener_set_ana_state", runtime, (*app).nvmfListenerSetANAState},
	{"nvmf_subsystem_set_ns_ana_group", runtime, (*app).nvmfSetNamespaceANAGroup},
	{"bdev_examine", runtime, (*app).bdevExamine},
	{"bdev_wait_for_examine", runtime, (*app).bdevWaitForExamine},
	{"bdev_get_iostat", runtime, (*app).bdevGetIostat},
	{"bdev_enable_histogram", runtime, (*app).bdevEnableHistogram},
	{methodBorders, runtime, (*app).bdevGetHistogramBorders},
	{"bdev_set_qos_limit", runtime, (*app).bdevSetQosLimit},
	{"sock_impl_set_options", startup, (*app).sockImplSetOptions},
	{"sock_impl_get_options", always, (*app).sockImplGetOptions},
	{"iobuf_get_stats", runtime, (*app).iobufGetStats},
	{"iobuf_set_options", startup, (*app).iobufSetOptions},
	{"spdk_get_version", always, (*app).getVersion},
	{"rpc_get_methods", always, (*app).getMethods},
}

const (
	msgTooEarly = "Method may only be called after framework is initialized using framework_start_init RPC."
	msgTooLate  = "Method may only be called before framework is initialized. Use --wait-for-rpc command line " +
		"parameter and then issue this RPC before the framework_start_init RPC."
)

func (a *app) state() state {
	if a.running {
		return runtime
	}
	return startup
}

func (a *app) has(name string) (method, bool) {
	m, ok := byName[name]
	return m, ok && !slices.Contains(a.opts.Without, name) && (name != methodBorders || !a.before(release2605))
}

func (a *app) carryOut(r *request) {
	m, ok := a.has(r.method)
	switch {
	case !ok:
		r.fail(codeMethodNotFound, "Method not found")
	case m.when&a.state() != 0:
		m.run(a, r)
	case a.running:
		r.fail(codeWrongState, msgTooLate)
	default:
		r.fail(codeWrongState, msgTooEarly)
	}
}

func (a *app) getMethods(r *request) {
	var current, aliases bool
	if r.params != nil && !r.decode(optional("current", asBool(&current)), optional("include_aliases", asBool(&aliases))) {
		r.invalid()
		return
	}
	names := []string{}
	for _, m := range methods {
		if _, ok := a.has(m.name); ok && (!current || m.when&a.state() != 0) {
			names = append(names, m.name)
		}
	}
	r.answer(names)
}

// none refuses parameters, in the words of the method.
func none(r *request, message string) bool {
	if r.params != nil {
		r.fail(codeInvalidParams, message)
	}
	return r.params == nil
}
