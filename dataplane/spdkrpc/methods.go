// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// Methods that the package can call, by SPDK's names. RPCGetMethods tells which of them a target has.
func Methods() []string {
	names := make([]string, len(requests))
	for i, r := range requests {
		names[i] = r.method()
	}
	return names
}

// requests of every type, area by area.
var requests = []request{
	SpdkGetVersion{}, RPCGetMethods{}, FrameworkStartInit{}, FrameworkGetConfig{},

	BdevSetOptions{}, BdevGetBdevs{}, BdevAioCreate{}, BdevAioDelete{}, BdevAioRescan{},
	BdevNvmeAttachController{}, BdevNvmeDetachController{}, BdevNvmeSendCmd{},
	BdevExamine{}, BdevWaitForExamine{}, BdevSetQosLimit{}, BdevGetIostat{},
	BdevEnableHistogram{}, BdevGetHistogramBorders{},
	BdevLvolCreateLvstore{}, BdevLvolGetLvstores{}, BdevLvolGrowLvstore{},
	BdevLvolCreate{}, BdevLvolGetLvols{}, BdevLvolResize{}, BdevLvolDelete{}, BdevLvolSnapshot{}, BdevLvolClone{},
	BdevLvolDecoupleParent{}, BdevLvolSetParent{}, BdevLvolRename{},
	NvmfSetConfig{}, NvmfSetMaxSubsystems{}, NvmfCreateTransport{}, NvmfGetTransports{},
	NvmfCreateSubsystem{}, NvmfDeleteSubsystem{}, NvmfGetSubsystems{}, NvmfSubsystemAddNs{},
	NvmfSubsystemRemoveNs{},
	NvmfSubsystemAddListener{}, NvmfSubsystemRemoveListener{}, NvmfSubsystemListenerSetAnaState{}, NvmfSubsystemSetNsAnaGroup{},
	NvmfSubsystemAddHost{}, NvmfSubsystemRemoveHost{}, NvmfSubsystemSetKeys{},
	NvmfSubsystemGetControllers{},
	IobufSetOptions{}, IobufGetStats{},
	SockImplSetOptions{}, SockImplGetOptions{},
	SchedulerSetOptions{}, FrameworkSetScheduler{}, FrameworkGetScheduler{}, FrameworkGetReactors{}, ThreadSetCpumask{},
	KeyringFileAddKey{}, KeyringFileRemoveKey{}, KeyringGetKeys{},
	ThreadGetStats{}, NvmfGetStats{},
}
