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
	SpdkGetVersion{}, RPCGetMethods{}, FrameworkStartInit{}, FrameworkWaitInit{}, FrameworkGetConfig{},
	LogSetPrintLevel{}, AccelSetOptions{},
	BdevSetOptions{}, BdevGetBdevs{}, BdevAioCreate{}, BdevAioDelete{}, BdevAioRescan{}, BdevNvmeSetOptions{},
	BdevNvmeAttachController{}, BdevNvmeDetachController{}, BdevNvmeGetControllers{}, BdevExamine{},
	BdevWaitForExamine{}, BdevSetQosLimit{},
	BdevLvolCreateLvstore{}, BdevLvolGetLvstores{}, BdevLvolGrowLvstore{}, BdevLvolDeleteLvstore{},
	BdevLvolCreate{}, BdevLvolGetLvols{}, BdevLvolResize{}, BdevLvolDelete{}, BdevLvolSnapshot{}, BdevLvolClone{},
	BdevLvolInflate{}, BdevLvolDecoupleParent{}, BdevLvolSetParent{}, BdevLvolRename{}, BdevLvolSetReadOnly{},
	NvmfSetConfig{}, NvmfSetMaxSubsystems{}, NvmfSetCrdt{}, NvmfCreateTransport{}, NvmfGetTransports{},
	NvmfCreateSubsystem{}, NvmfDeleteSubsystem{}, NvmfGetSubsystems{}, NvmfSubsystemAddNs{},
	NvmfSubsystemRemoveNs{}, NvmfNsAddHost{}, NvmfNsRemoveHost{},
	NvmfSubsystemAddListener{}, NvmfSubsystemRemoveListener{},
	NvmfSubsystemAddHost{}, NvmfSubsystemRemoveHost{}, NvmfSubsystemSetKeys{},
	NvmfSubsystemGetControllers{}, NvmfSubsystemGetQpairs{},
	IobufSetOptions{}, IobufGetStats{},
	SockImplSetOptions{}, SockImplGetOptions{}, SockSetDefaultImpl{},
	FrameworkSetScheduler{}, FrameworkGetScheduler{}, FrameworkGetReactors{}, ThreadSetCpumask{},
	KeyringFileAddKey{}, KeyringFileRemoveKey{}, KeyringGetKeys{},
	BdevGetIostat{}, ThreadGetStats{}, NvmfGetStats{},
}
