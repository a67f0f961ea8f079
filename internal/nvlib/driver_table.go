package nvlib

import "hocket.example/hocket/internal/cabi"

// driverFuncs are the driver's functions by the names of their newest variants
// that a driver for CUDA 12 has.
type driverFuncs struct {
	init                        cabi.Func
	driverGetVersion            cabi.Func
	deviceGetCount              cabi.Func
	deviceGet                   cabi.Func
	deviceGetName               cabi.Func
	deviceGetPCIBusID           cabi.Func
	deviceTotalMem              cabi.Func
	deviceGetAttribute          cabi.Func
	deviceCanAccessPeer         cabi.Func
	deviceGetP2PAttribute       cabi.Func
	primaryCtxRetain            cabi.Func
	ctxSetCurrent               cabi.Func
	ctxGetStreamPriorityRange   cabi.Func
	memGetInfo                  cabi.Func
	memGetAllocationGranularity cabi.Func
	memCreate                   cabi.Func
	memRelease                  cabi.Func
	memAddressReserve           cabi.Func
	memAddressFree              cabi.Func
	memMap                      cabi.Func
	memUnmap                    cabi.Func
	memSetAccess                cabi.Func
	memHostAlloc                cabi.Func
	memFreeHost                 cabi.Func
	memExportToShareableHandle  cabi.Func
	memImportFromShareable      cabi.Func
	memHostRegister             cabi.Func
	memHostUnregister           cabi.Func
	memcpyAsync                 cabi.Func
	memcpy2DAsync               cabi.Func
	memsetD32Async              cabi.Func
	memsetD8Async               cabi.Func
	moduleLoadData              cabi.Func
	moduleGetFunction           cabi.Func
	funcSetAttribute            cabi.Func
	launchKernel                cabi.Func
	launchKernelEx              cabi.Func
	streamCreateWithPriority    cabi.Func
	streamDestroy               cabi.Func
	streamQuery                 cabi.Func
	streamSynchronize           cabi.Func
	streamWaitEvent             cabi.Func
	streamBeginCapture          cabi.Func
	streamEndCapture            cabi.Func
	eventCreate                 cabi.Func
	eventDestroy                cabi.Func
	eventRecord                 cabi.Func
	eventRecordWithFlags        cabi.Func
	eventQuery                  cabi.Func
	eventElapsedTime            cabi.Func
	graphInstantiate            cabi.Func
	graphUpload                 cabi.Func
	graphLaunch                 cabi.Func
	graphGetNodes               cabi.Func
	graphDestroy                cabi.Func
	graphExecDestroy            cabi.Func
	getErrorName                cabi.Func
	streamIsCapturing           cabi.Func
	ctxSynchronize              cabi.Func
	getErrorString              cabi.Func
	funcIsLoaded                cabi.Func
	funcLoad                    cabi.Func
	funcGetParamInfo            cabi.Func
	funcGetAttribute            cabi.Func
	multicastCreate             cabi.Func
	multicastAddDevice          cabi.Func
	multicastBindMem            cabi.Func
	multicastUnbind             cabi.Func
	multicastGetGranularity     cabi.Func
	profilerStart, profilerStop cabi.Func
}

func (f *driverFuncs) table() map[string]*cabi.Func {
	return map[string]*cabi.Func{
		"cuInit":                         &f.init,
		"cuDriverGetVersion":             &f.driverGetVersion,
		"cuDeviceGetCount":               &f.deviceGetCount,
		"cuDeviceGet":                    &f.deviceGet,
		"cuDeviceGetName":                &f.deviceGetName,
		"cuDeviceGetPCIBusId":            &f.deviceGetPCIBusID,
		"cuDeviceTotalMem_v2":            &f.deviceTotalMem,
		"cuDeviceGetAttribute":           &f.deviceGetAttribute,
		"cuDeviceCanAccessPeer":          &f.deviceCanAccessPeer,
		"cuDevicePrimaryCtxRetain":       &f.primaryCtxRetain,
		"cuCtxSetCurrent":                &f.ctxSetCurrent,
		"cuCtxGetStreamPriorityRange":    &f.ctxGetStreamPriorityRange,
		"cuMemGetInfo_v2":                &f.memGetInfo,
		"cuMemGetAllocationGranularity":  &f.memGetAllocationGranularity,
		"cuMemCreate":                    &f.memCreate,
		"cuMemRelease":                   &f.memRelease,
		"cuMemAddressReserve":            &f.memAddressReserve,
		"cuMemAddressFree":               &f.memAddressFree,
		"cuMemMap":                       &f.memMap,
		"cuMemUnmap":                     &f.memUnmap,
		"cuMemSetAccess":                 &f.memSetAccess,
		"cuMemHostAlloc":                 &f.memHostAlloc,
		"cuMemFreeHost":                  &f.memFreeHost,
		"cuMemExportToShareableHandle":   &f.memExportToShareableHandle,
		"cuMemImportFromShareableHandle": &f.memImportFromShareable,
		"cuMemHostRegister_v2":           &f.memHostRegister,
		"cuMemHostUnregister":            &f.memHostUnregister,
		"cuMemcpyAsync":                  &f.memcpyAsync,
		"cuMemcpy2DAsync_v2":             &f.memcpy2DAsync,
		"cuMemsetD32Async":               &f.memsetD32Async,
		"cuMemsetD8Async":                &f.memsetD8Async,
		"cuModuleLoadData":               &f.moduleLoadData,
		"cuModuleGetFunction":            &f.moduleGetFunction,
		"cuFuncSetAttribute":             &f.funcSetAttribute,
		"cuLaunchKernel":                 &f.launchKernel,
		"cuStreamCreateWithPriority":     &f.streamCreateWithPriority,
		"cuStreamDestroy_v2":             &f.streamDestroy,
		"cuStreamQuery":                  &f.streamQuery,
		"cuStreamSynchronize":            &f.streamSynchronize,
		"cuStreamWaitEvent":              &f.streamWaitEvent,
		"cuStreamBeginCapture_v2":        &f.streamBeginCapture,
		"cuStreamEndCapture":             &f.streamEndCapture,
		"cuEventCreate":                  &f.eventCreate,
		"cuEventDestroy_v2":              &f.eventDestroy,
		"cuEventRecord":                  &f.eventRecord,
		"cuEventRecordWithFlags":         &f.eventRecordWithFlags,
		"cuEventQuery":                   &f.eventQuery,
		"cuEventElapsedTime":             &f.eventElapsedTime,
		"cuGraphInstantiateWithFlags":    &f.graphInstantiate,
		"cuGraphUpload":                  &f.graphUpload,
		"cuGraphLaunch":                  &f.graphLaunch,
		"cuGraphGetNodes":                &f.graphGetNodes,
		"cuGraphDestroy":                 &f.graphDestroy,
		"cuGraphExecDestroy":             &f.graphExecDestroy,
		"cuGetErrorName":                 &f.getErrorName,
		"cuGetErrorString":               &f.getErrorString,
	}
}

// optional are functions that the machine can do without.
func (f *driverFuncs) optional() map[string]*cabi.Func {
	return map[string]*cabi.Func{
		"cuDeviceGetP2PAttribute":   &f.deviceGetP2PAttribute,
		"cuLaunchKernelEx":          &f.launchKernelEx,
		"cuStreamIsCapturing":       &f.streamIsCapturing,
		"cuCtxSynchronize":          &f.ctxSynchronize,
		"cuFuncIsLoaded":            &f.funcIsLoaded,
		"cuFuncLoad":                &f.funcLoad,
		"cuFuncGetParamInfo":        &f.funcGetParamInfo,
		"cuFuncGetAttribute":        &f.funcGetAttribute,
		"cuMulticastCreate":         &f.multicastCreate,
		"cuMulticastAddDevice":      &f.multicastAddDevice,
		"cuMulticastBindMem":        &f.multicastBindMem,
		"cuMulticastUnbind":         &f.multicastUnbind,
		"cuMulticastGetGranularity": &f.multicastGetGranularity,
		"cuProfilerStart":           &f.profilerStart,
		"cuProfilerStop":            &f.profilerStop,
	}
}
